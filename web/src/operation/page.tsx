import { Page } from "../part/Page"
import { t } from "../text/text"

export default function OperationPage() {
  return <Page title={t("operation.title")} />
}
