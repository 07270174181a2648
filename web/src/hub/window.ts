/** Pure: the state of a window of rows after a message of the socket. */
import type { Column, Status } from "./client"

export type Row = {
  key: number
  cells: unknown[]
  cluster: string
  namespace: string
  name: string
  uid: string
  apiVersion: string
  kind: string
  created: string
  deleted?: boolean
}

/**
 * loading: no answer yet. live: current. stale: as of `since`. refused: the API refused. unknown:
 * the API could not answer, and there are no earlier rows.
 */
export type State = "loading" | "live" | "stale" | "refused" | "unknown"

export type Window = {
  state: State
  since: number
  offset: number
  total: number
  exact: boolean
  columns: Column[]
  rows: Row[]
  warnings: string[]
  status?: Status
}

/** A row with the fields that the hub leaves out when they are empty. */
const whole = (row: Row): Row => ({ ...row, namespace: row.namespace ?? "", created: row.created ?? "" })

/**
 * The rows of a window. Unchanged rows stay the same objects, so that they are not rendered
 * again.
 */
function kept(before: Row[], rows: Row[]): Row[] {
  const known = new Map(before.map((row) => [row.key, row]))
  return rows.map((row) => {
    const next = whole(row)
    const old = known.get(row.key)
    return old && JSON.stringify(old) === JSON.stringify(next) ? old : next
  })
}

export type WindowMessage = {
  type: "window"
  id: number
  offset: number
  total: number
  exact: boolean
  columns: Column[]
  rows: Row[] | null
  warnings?: string[] | null
}
export type DeltaMessage = {
  type: "delta"
  id: number
  total: number
  exact: boolean
  order?: number[]
  rows?: Row[]
  cells?: Record<string, Record<string, unknown>>
}
export type ErrorMessage = { type: "error"; id: number; status: Status }
export type Cluster = { name: string; state: string; since: string; lag: number }
export type Message = WindowMessage | DeltaMessage | ErrorMessage | { type: "fleet"; clusters: Cluster[] | null } | { type: "end"; reason: string }

export const nothing: Window = {
  state: "loading",
  since: 0,
  offset: 0,
  total: 0,
  exact: true,
  columns: [],
  rows: [],
  warnings: [],
}

export function received(w: Window, m: WindowMessage | DeltaMessage | ErrorMessage, now: number): Window {
  switch (m.type) {
    case "window":
      return {
        state: "live",
        since: now,
        offset: m.offset,
        total: m.total,
        exact: m.exact,
        columns: m.columns,
        rows: kept(w.rows, m.rows ?? []),
        warnings: m.warnings ?? [],
      }
    case "delta":
      return { ...w, state: "live", since: now, total: m.total, exact: m.exact, rows: changed(w, m), status: undefined }
    case "error":
      return failed(w, m.status)
  }
}

function changed(w: Window, m: DeltaMessage): Row[] {
  let rows = w.rows
  if (m.order || m.rows) {
    const known = new Map(rows.map((row) => [row.key, row]))
    for (const row of m.rows ?? []) known.set(row.key, whole(row))
    const order = m.order ?? rows.map((row) => row.key)
    rows = order.flatMap((key) => known.get(key) ?? [])
  }
  const cells = m.cells
  if (!cells) return rows
  return rows.map((row) => {
    const change = cells[row.key]
    if (!change) return row
    return { ...row, cells: row.cells.map((cell, i) => (i in change ? change[i] : cell)) }
  })
}

/** A refusal removes the rows. Another error keeps them, marked as stale. */
function failed(w: Window, status: Status): Window {
  if (status.code >= 400 && status.code < 500 && status.code !== 429) return { ...nothing, columns: w.columns, state: "refused", status }
  return { ...w, state: w.since ? "stale" : "unknown", status }
}

/** After the connection is lost, live rows become stale. */
export function broken(w: Window): Window {
  return w.state === "live" ? { ...w, state: "stale" } : w
}
