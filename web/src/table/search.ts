import { useState } from "react"
import { listable } from "../hub/access"
import { useAnswer } from "../hub/answer"
import { asTable, mirrored, request, StatusError, type Table } from "../hub/client"
import { type Kind, pathOf } from "../hub/kinds"
import { useRights } from "../hub/rights"
import { nothing, type Row, type Window } from "../hub/window"
import { t } from "../text/text"

const [most, pages] = [500, 20]

type Found = { tables: Table[]; warnings: string[]; more?: boolean }
type Read = (t: Table) => Omit<Row, "key">[]

/** Reads a list up to `count` pages: one to show the list, more to search in it. */
async function pagesOf(path: string, count: number, signal: AbortSignal): Promise<Found> {
  const all: Found = { tables: [], warnings: [] }
  let next: string | undefined
  do {
    const answer = await request(path, { accept: asTable, query: { limit: most, continue: next }, signal })
    const table: Table = await answer.json()
    all.tables.push(table)
    all.warnings.push(...warningsOf(answer.headers.get("Warning")))
    next = table.metadata.continue
  } while (next && all.tables.length < count)
  return { ...all, more: next !== undefined && next !== "" }
}

/** The first rows of polled tables, in the shape of a window. */
function usePolled(paths: (() => Promise<string[]>) | undefined, key: string, everyMs: number, read: Read, count = 1): Window {
  const ask = async (signal: AbortSignal): Promise<Found> => {
    const all = await Promise.all((await paths!()).map((path) => pagesOf(path, count, signal)))
    setMany(all.some((f) => f.tables.length > 1))
    return { tables: all.flatMap((f) => f.tables), warnings: all.flatMap((f) => f.warnings), more: all.some((f) => f.more) }
  }
  // Several pages are polled less often.
  const [many, setMany] = useState(false)
  const answer = useAnswer(paths && ask, key, many ? 6 * everyMs : everyMs)
  const kept = answer.data ? found(answer.data, answer.since, read) : nothing
  const status = answer.error?.status
  if (!status) return kept
  if (status.code >= 400 && status.code < 500) return { ...nothing, state: "refused", status }
  return { ...kept, state: answer.data ? "stale" : "unknown", status }
}

/** Pure: the objects in a table of all kinds. */
export function objectsOf({ columnDefinitions, rows }: Table): Omit<Row, "key">[] {
  const index = (name: string) => columnDefinitions.findIndex((c) => c.name === name)
  const [kind, cluster, namespace, name, version, created] = ["Kind", "Cluster", "Namespace", "Name", "API Version", "Created"].map(index)
  return rows.map(({ cells }) => {
    const text = (i: number | undefined) => String(cells[i ?? -1] ?? "")
    const where = { cluster: text(cluster), namespace: text(namespace), name: text(name) }
    return { ...where, cells, uid: "", apiVersion: text(version), kind: text(kind), created: text(created) }
  })
}

/** A search in all kinds. */
export function useSearch(query: string | undefined): Window {
  const path = `${mirrored()}/search?${query}`
  return usePolled(query === undefined ? undefined : async () => [path], path, 15_000, objectsOf)
}

/**
 * Objects of the hub itself, where the user may list them. The hub's API has no query language,
 * so the words are searched in the names.
 */
export function useHubObjects(kind: Kind | undefined, q: string): Window {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean)
  const rights = useRights()
  const namespaces = rights?.namespaces ?? []
  const paths = async () => {
    const places = await listable(kind!, namespaces)
    if (places.length === 0) throw new StatusError({ code: 403, reason: "Forbidden", message: t("table.hubRefused", { kind: kind!.kind }) })
    return places.map((namespace) => pathOf(kind!, namespace))
  }
  const looked = words.length > 0
  const read: Read = ({ rows }) =>
    rows
      .map(({ cells, object: { metadata: m } }) => ({
        cells,
        cluster: "",
        namespace: m.namespace ?? "",
        name: m.name,
        uid: m.uid ?? "",
        apiVersion: kind!.group ? `${kind!.group}/${kind!.version}` : kind!.version,
        kind: kind!.kind,
        created: m.creationTimestamp ?? "",
        deleted: m.deletionTimestamp !== undefined,
      }))
      .filter((row) => words.every((word) => `${row.namespace}/${row.name}`.toLowerCase().includes(word)))
  return usePolled(kind && rights && paths, JSON.stringify(["hub", kind?.of, namespaces, looked]), 5000, read, looked ? pages : 1)
}

const keys = new Map<string, number>()

/** Each object keeps its number, as rows of the live socket do. */
function found({ tables, warnings, more }: Found, since: number, read: Read): Window {
  const rows = tables.flatMap(read).map((row): Row => {
    const id = `${row.cluster}/${row.apiVersion}/${row.kind}/${row.namespace}/${row.name}`
    if (!keys.has(id)) keys.set(id, keys.size + 1)
    return { ...row, key: keys.get(id)! }
  })
  return {
    ...nothing,
    state: "live",
    since,
    total: rows.length,
    exact: !more,
    columns: tables[0]?.columnDefinitions ?? [],
    rows,
    warnings,
  }
}

/** Pure: the texts of Warning headers, which are joined with commas: 299 - "text", 299 - "text". */
export function warningsOf(header: string | null): string[] {
  return [...(header ?? "").matchAll(/\d{3} \S+ "((?:\\.|[^"\\])*)"/g)].map((m) => m[1]!.replace(/\\(.)/g, "$1"))
}
