/** Pure: what a window of rows is after a message of the socket. */
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

/** loading: nothing came yet. live: as of now. stale: it was so at `since`. refused: the API says no. unknown: it could not say. */
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

/** A row with what the wire leaves out where it is empty. */
const whole = (row: Row): Row => ({ ...row, namespace: row.namespace ?? "", created: row.created ?? "" })

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
        rows: (m.rows ?? []).map(whole),
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

/** A refusal takes what was shown away; an API that cannot say leaves it, as what it was. */
function failed(w: Window, status: Status): Window {
  if (status.code >= 400 && status.code < 500 && status.code !== 429) return { ...nothing, columns: w.columns, state: "refused", status }
  return { ...w, state: w.since ? "stale" : "unknown", status }
}

/** The connection is gone: what is shown was so when it was last heard of. */
export function broken(w: Window): Window {
  return w.state === "live" ? { ...w, state: "stale" } : w
}
