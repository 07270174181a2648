import { useGet } from "../hub/answer"
import { type Counts, mirrored } from "../hub/client"
import { Answered } from "../part/Answered"
import { number, t } from "../text/text"
import { has } from "./query"

/** The number of objects by one field. A click on a value adds it to the query, or removes it. */
export function Facets({ path, query, by, q, onToggle }: { path: string; query: string; by: string; q: string; onToggle: (value: string) => void }) {
  const params = Object.fromEntries(new URLSearchParams(query))
  delete params.orderby
  const answer = useGet<Counts>(mirrored() + path, { ...params, group: by }, 10_000)
  const groups = answer.data?.groups ?? []
  const most = Math.max(1, ...groups.map((g) => g.objects))
  if (!answer.data || answer.error) return <Answered answer={{ ...answer, data: undefined }} lines={5} />
  return (
    <ul className="facets" aria-label={t("table.group")}>
      {groups.slice(0, 500).map(({ values: [value = ""], objects }) => (
        <li key={value}>
          <button type="button" className="facet" aria-pressed={has(q, by, value)} onClick={() => onToggle(value)}>
            <span className="facet-name">{value || t("table.noValue")}</span>
            <span className="facet-count">{number(objects)}</span>
            <span className="facet-bar" style={{ width: `${(100 * objects) / most}%` }} />
          </button>
        </li>
      ))}
    </ul>
  )
}
