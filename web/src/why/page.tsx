import { Page } from "../part/Page"
import { t } from "../text/text"

export default function WhyPage() {
  return <Page title={t("why.title")} />
}
