import { Component, type ReactNode } from "react"
import { t } from "../text/text"
import { Button } from "./Button"
import { Notice } from "./Notice"

/** A screen that breaks does not take the others with it. */
export class Boundary extends Component<{ children: ReactNode }, { error?: Error }> {
  override state: { error?: Error } = {}
  static getDerivedStateFromError(error: Error) {
    return { error }
  }
  override render() {
    if (!this.state.error) return this.props.children
    const reload = <Button onClick={() => location.reload()}>{t("common.reload")}</Button>
    return (
      <div className="page">
        <Notice tone="bad" title={t("common.broke")} action={reload}>
          <p>{t("common.brokeMore")}</p>
          <p className="selectable mono">{this.state.error.message}</p>
        </Notice>
      </div>
    )
  }
}
