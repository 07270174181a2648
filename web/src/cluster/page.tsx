import { Page } from "../part/Page"
import { t } from "../text/text"

export default function ClusterPage() {
  return <Page title={t("cluster.title")} />
}
