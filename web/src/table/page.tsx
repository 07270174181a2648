import { Page } from "../part/Page"
import { t } from "../text/text"

export default function TablePage() {
  return <Page title={t("table.title")} />
}
