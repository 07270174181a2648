/** Pure: the state of the table is in its URL. */
import { findKind, type Kind, pathOf } from "../hub/kinds"
import { quote } from "./query"

export type TableState = { hub: boolean; kind: string; q: string; sort: string; group: string; columns?: string[] }

/** The kind that stands for all kinds. */
export const every = "*"

export function readState(search: string): TableState {
  const p = new URLSearchParams(search)
  const columns = p.get("columns")
  // Links may name a cluster and a namespace as parameters; they become terms of the query.
  const named = ["cluster", "namespace"].flatMap((key) => (p.get(key) ? [`${key}:${quote(p.get(key)!)}`] : []))
  return {
    hub: p.get("hub") === "1",
    kind: p.get("kind") || "Pod",
    q: [...named, p.get("q") ?? ""].join(" ").trim(),
    sort: p.get("sort") ?? "",
    group: p.get("group") ?? "",
    columns: columns ? columns.split(",") : undefined,
  }
}

export function writeState(s: TableState): string {
  const p = new URLSearchParams()
  if (s.hub) p.set("hub", "1")
  p.set("kind", s.kind)
  if (s.q) p.set("q", s.q)
  if (s.sort) p.set("sort", s.sort)
  if (s.group) p.set("group", s.group)
  if (s.columns) p.set("columns", s.columns.join(","))
  return p.toString()
}

/** The request to the fleet API for a state. For the hub's own API, q is a part of the name. */
export function question(s: TableState, kinds: Kind[]): { kind?: Kind; path?: string; query: string } {
  const p = new URLSearchParams()
  if (s.q) p.set("q", s.q)
  if (s.kind === every) return { path: "/search", query: p.toString() }
  const kind = findKind(kinds, s.kind)
  if (s.sort && !s.hub) p.set("orderby", s.sort)
  return { kind, path: kind && pathOf(kind), query: p.toString() }
}
