import { Page } from "../part/Page"
import { t } from "../text/text"

export default function PolicyPage() {
  return <Page title={t("policy.title")} />
}
