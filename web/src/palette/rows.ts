// The keys of lists. A row is an element with data-row. Its first link gets the focus, and Enter
// opens the link.

/** Pure: the index of the row after a move; at is -1 if no row has the focus. */
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
