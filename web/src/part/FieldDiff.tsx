import type { Difference, Json } from "../hub/fields"
import { t } from "../text/text"
import { Empty } from "./Notice"
import { SmallTable } from "./Page"
import "./value.css"

/** The value of a field: in one line, or in several if it is long. */
export function Value({ value }: { value: Json | undefined }) {
  if (value === undefined) return <span className="faint">{t("common.none")}</span>
  const text = typeof value === "string" ? value : JSON.stringify(value, undefined, short(value) ? undefined : 2)
  return <code className="value">{text}</code>
}

const short = (value: Json): boolean => JSON.stringify(value).length < 80

/** Fields that differ, one per row, with the values before and after. */
export function FieldDiff({ fields, label, before, after }: { fields: Difference[]; label: string; before?: string; after?: string }) {
  if (fields.length === 0) return <Empty title={t("common.noDifference")} />
  return (
    <SmallTable
      label={label}
      head={[t("object.field"), before ?? t("object.before"), after ?? t("object.after")]}
      rows={fields.map((field) => ({
        key: field.path,
        cells: [
          <code key="path" className="value">
            {field.path}
          </code>,
          ...(field.hidden
            ? [t("object.hidden"), t("object.hidden")]
            : [<Value key="before" value={field.before} />, <Value key="after" value={field.after} />]),
        ],
      }))}
    />
  )
}
