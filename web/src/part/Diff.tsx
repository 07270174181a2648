import { useMemo } from "react"
import { stringify } from "yaml"
import { t } from "../text/text"
import { comparable, diffLines } from "./diff"
import { Empty } from "./Notice"

type Side = object | string | undefined

const lines = (side: Side): string[] => {
  if (side === undefined) return []
  const text = typeof side === "string" ? side : stringify(comparable(side), { lineWidth: 0, aliasDuplicateObjects: false })
  return text.replace(/\n$/, "").split("\n")
}

/** Two objects or texts as one list of lines: removed, added, and some context. */
export function Diff({ before, after, label }: { before: Side; after: Side; label: string }) {
  const diff = useMemo(() => diffLines(lines(before), lines(after)), [before, after])
  if (!diff.some((line) => line.kind === "added" || line.kind === "removed")) return <Empty title={t("common.noDifference")} />
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: users scroll it by keyboard.
    <section className="diff" aria-label={label} tabIndex={0}>
      <table>
        <tbody>
          {diff.map((line, i) =>
            line.kind === "gap" ? (
              // biome-ignore lint/suspicious/noArrayIndexKey: a diff never changes in part.
              <tr key={i} className="gap">
                <td colSpan={3}>{t("common.unchanged", { n: line.count })}</td>
              </tr>
            ) : (
              // biome-ignore lint/suspicious/noArrayIndexKey: a diff never changes in part.
              <tr key={i} className={line.kind}>
                <td className="number">{line.before}</td>
                <td className="number">{line.after}</td>
                <td className="text">
                  {line.kind === "added" && <ins>{`+ ${line.text}`}</ins>}
                  {line.kind === "removed" && <del>{`- ${line.text}`}</del>}
                  {line.kind === "same" && `  ${line.text}`}
                </td>
              </tr>
            ),
          )}
        </tbody>
      </table>
    </section>
  )
}
