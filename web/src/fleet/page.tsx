import { Page } from "../part/Page"
import { t } from "../text/text"

export default function FleetPage() {
  return <Page title={t("fleet.title")} />
}
