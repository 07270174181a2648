import { Age } from "../part/Age"
import { Mark } from "../part/Mark"
import { Section, SmallTable } from "../part/Page"
import { t } from "../text/text"
import "./object.css"
import { conditionsOf } from "./object"

/** The conditions in an object's status, or of anything with such a status. */
export function Conditions({ object }: { object: Parameters<typeof conditionsOf>[0] }) {
  const conditions = conditionsOf(object)
  if (conditions.length === 0) return null
  return (
    <Section title={t("object.conditions")}>
      <SmallTable
        label={t("object.conditions")}
        head={[t("object.condition"), t("object.status"), t("object.reason"), t("object.message"), t("object.since")]}
        rows={conditions.map((c) => ({
          key: c.type,
          cells: [
            c.type,
            <Mark key="status" tone={c.tone}>
              {c.status}
            </Mark>,
            c.reason,
            <span key="message" className="selectable message">
              {c.message}
            </span>,
            <Age key="since" since={c.since} />,
          ],
        }))}
      />
    </Section>
  )
}
