import { Page } from "../part/Page"
import { t } from "../text/text"

export default function ObjectPage() {
  return <Page title={t("object.title")} />
}
