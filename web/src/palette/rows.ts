// The keys of lists: a row is an element with data-row, and its first link is what the focus goes to, and Enter opens.

/** Pure: the row that a move leads to, of so many, from the one that has the focus; -1: none has it. */
export function moveTo(move: "next" | "before" | "first" | "last", at: number, count: number): number {
  if (move === "first") return 0
  if (move === "last" || count === 0) return count - 1
  return move === "next" ? Math.min(at + 1, count - 1) : Math.max(at - 1, 0)
}

const all = "#content [data-row]"
export const hasRows = (): boolean => document.querySelector(all) !== null

export function moveRow(move: Parameters<typeof moveTo>[0]): void {
  const rows = [...document.querySelectorAll(all)].flatMap((row) => {
    const link = row.querySelector<HTMLElement>("a[href]")
    return link ? [{ row, link }] : []
  })
  const at = rows.findIndex(({ row }) => row.contains(document.activeElement))
  const to = rows[moveTo(move, at, rows.length)]
  to?.link.focus()
  to?.row.scrollIntoView({ block: "nearest" })
}
