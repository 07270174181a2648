/** Pure: the columns of a table, their widths, and the look of cells. */
import type { Column } from "../hub/client"
import { type Fleet, type Freshness, freshnessIn } from "../hub/freshness"
import type { Row } from "../hub/live"
import { type Tone, toneOf } from "../part/Mark"

/** index -1 is the namespace: tables of one kind have no column for it. */
export type Shown = { index: number; name: string; sort?: string; width: string }

/** The columns by which the fleet API sorts. */
const sorts: Record<string, string> = { Name: "name", Namespace: "namespace", Cluster: "cluster", Age: "created" }

export function shown(columns: Column[], rows: Row[], chosen: string[] | undefined, o: { namespaced: boolean; kinds: boolean }): Shown[] {
  const all = everyColumn(columns, o)
  const visible = chosen ? all.filter((c) => chosen.includes(c.name)) : all.filter((c) => c.index < 0 || !columns[c.index]!.priority)
  return (visible.length ? visible : all).map((c) => ({
    ...c,
    sort: o.kinds ? undefined : sorts[c.name],
    width: width(c, columns[c.index], rows),
  }))
}

/** All columns, those that identify the object first. The table of all kinds has its own order. */
export function everyColumn(columns: Column[], o: { namespaced: boolean; kinds: boolean }): { index: number; name: string }[] {
  if (!columns.length) return []
  const own = columns.map((c, index) => ({ index, name: c.name }))
  if (o.kinds) return own
  const first = (name: string) => own.filter((c) => c.name === name)
  const rest = own.filter((c) => c.name !== "Cluster" && c.name !== "Name" && c.name !== "Namespace")
  const namespace = o.namespaced ? [{ index: -1, name: "Namespace" }] : []
  return [...first("Cluster"), ...namespace, ...first("Name"), ...rest]
}

export function cellOf(row: Row, column: { index: number; name: string }): unknown {
  if (column.index === -1) return row.namespace
  return row.cells[column.index]
}

/**
 * The column for the age of rows, which the API adds as the last one while some are stale. It has
 * another name for types with a column Last Seen of their own, such as Events.
 */
export function staleColumn(columns: Column[]): number {
  const last = columns.length - 1
  return ["Last Seen", "Cluster Last Seen"].includes(columns[last]?.name ?? "") ? last : -1
}

/** The freshness of a row. Its cell is an age such as 2m42s, as of the time of the answer. */
export function freshnessOfRow(fleet: Fleet, row: Row, stale: number): Freshness & { text?: string } {
  const text = stale < 0 ? "now" : textOf(row.cells[stale])
  const is = freshnessIn(fleet, row.cluster, text === "now" || text === "" ? undefined : "")
  return is.state === "behind" ? { ...is, text } : is
}

export function textOf(cell: unknown): string {
  if (cell === null || cell === undefined) return ""
  return typeof cell === "object" ? JSON.stringify(cell) : String(cell)
}

/**
 * Widths follow the content of the first rows and then stay. The name takes the remaining space.
 */
function width(c: { index: number; name: string }, column: Column | undefined, rows: Row[]): string {
  if (c.name === "Age") return "72px"
  const lengths = rows.slice(0, 80).map((row) => textOf(cellOf(row, c)).length)
  lengths.sort((a, b) => a - b)
  const typical = lengths[Math.floor(lengths.length * 0.95)] ?? 10
  const mark = rows.some((row) => toneOfCell(c.name, textOf(cellOf(row, c))) !== "plain") ? 18 : 0
  const px = Math.round(Math.max(c.name.length * 7.5 + 26, Math.min(typical, 44) * 7.2 + 22 + mark))
  if (c.name === "Name") return `minmax(${Math.max(160, Math.min(px, 300))}px, ${Math.round(1.6 * Math.max(px, 160))}fr)`
  return column?.type === "integer" ? `${px}px` : `minmax(${Math.min(px, 190)}px, ${px}fr)`
}

/** Only cells with a state have a colour. */
export function toneOfCell(column: string, text: string): Tone {
  if (/status|phase|state|health|condition|^ready$|^available$|^reason$|^type$/i.test(column)) {
    const parts = /^(\d+)\/(\d+)$/.exec(text)
    if (parts) return parts[1] === parts[2] ? "plain" : "warn"
    return toneOf(text)
  }
  return "plain"
}

/** The next sort order of a column: ascending, descending, none. */
export function nextSort(current: string, column: string): string {
  if (current === column) return `${column} desc`
  return current === `${column} desc` ? "" : column
}
