import { Page } from "../part/Page"
import { t } from "../text/text"

export default function ChangePage() {
  return <Page title={t("change.title")} />
}
