import { Component, type ReactNode } from "react"
import { StatusError } from "../hub/client"
import { t } from "../text/text"
import { Button } from "./Button"
import { Failure, Notice } from "./Notice"

type Props = { children: ReactNode; around?: (what: ReactNode) => ReactNode }

/**
 * Limits an error to one screen. After a failed request the user can try again; for missing code
 * the page must be reloaded.
 */
export class Boundary extends Component<Props, { error?: Error }> {
  override state: { error?: Error } = {}
  static getDerivedStateFromError(error: Error) {
    return { error }
  }
  override render() {
    const { error } = this.state
    const { children, around = (what) => <div className="page">{what}</div> } = this.props
    if (!error) return children
    if (error instanceof StatusError) return around(<Failure error={error} retry={() => this.setState({ error: undefined })} />)
    const reload = <Button onClick={() => location.reload()}>{t("common.reload")}</Button>
    return around(
      <Notice tone="bad" title={t("common.broke")} action={reload}>
        <p>{t("common.brokeMore")}</p>
        <p className="selectable mono">{error.message}</p>
      </Notice>,
    )
  }
}

/** Limits an error to a part of a screen. */
export const Part = ({ children }: { children: ReactNode }) => <Boundary around={(what) => what}>{children}</Boundary>
