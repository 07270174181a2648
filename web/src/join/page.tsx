import { Page } from "../part/Page"
import { t } from "../text/text"

export default function JoinPage() {
  return <Page title={t("join.title")} />
}
