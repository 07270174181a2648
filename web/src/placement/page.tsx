import { Page } from "../part/Page"
import { t } from "../text/text"

export default function PlacementPage() {
  return <Page title={t("placement.title")} />
}
