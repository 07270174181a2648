import { useAnswer } from "../hub/answer"
import { mirrored, request, type Table } from "../hub/client"
import { nothing, type Row, type Window } from "../hub/window"

const most = 500

type Found = { table: Table; warnings: string[] }
type Read = (t: Table) => Omit<Row, "key">[]

/** A table that is asked for again now and then, in the shape of a window: its first rows. */
function usePolled(path: string | undefined, everyMs: number, read: Read): Window {
  const ask = async (signal: AbortSignal): Promise<Found> => {
    const accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    const answer = await request(path!, { accept, query: { limit: most }, signal })
    return { table: await answer.json(), warnings: warningsOf(answer.headers.get("Warning")) }
  }
  const answer = useAnswer(path === undefined ? undefined : ask, path ?? "", everyMs)
  const kept = answer.data ? found(answer.data, answer.since, read) : nothing
  const status = answer.error?.status
  if (!status) return kept
  if (status.code >= 400 && status.code < 500) return { ...nothing, state: "refused", status }
  return { ...kept, state: answer.data ? "stale" : "unknown", status }
}

/** A search of every kind. */
export function useSearch(query: string | undefined): Window {
  return usePolled(query === undefined ? undefined : `${mirrored()}/search?${query}`, 15_000, ({ columnDefinitions, rows }) => {
    const index = (name: string) => columnDefinitions.findIndex((c) => c.name === name)
    const [kind, cluster, namespace, name, version, created] = ["Kind", "Cluster", "Namespace", "Name", "API Version", "Created"].map(index)
    return rows.map(({ cells }) => {
      const text = (i: number | undefined) => String(cells[i ?? -1] ?? "")
      const where = { cluster: text(cluster), namespace: text(namespace), name: text(name) }
      return { ...where, cells, uid: "", apiVersion: text(version), kind: text(kind), created: text(created) }
    })
  })
}

/** Objects of the hub itself, whose API knows no query: what is typed is looked for in their names. */
export function useHubObjects(path: string | undefined, of: { apiVersion: string; kind: string } | undefined, q: string): Window {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean)
  return usePolled(path, 5000, ({ rows }) =>
    rows
      .map(({ cells, object: { metadata: m } }) => ({
        cells,
        cluster: "",
        namespace: m.namespace ?? "",
        name: m.name,
        uid: m.uid ?? "",
        apiVersion: of?.apiVersion ?? "",
        kind: of?.kind ?? "",
        created: m.creationTimestamp ?? "",
        deleted: m.deletionTimestamp !== undefined,
      }))
      .filter((row) => words.every((word) => `${row.namespace}/${row.name}`.toLowerCase().includes(word))),
  )
}

const keys = new Map<string, number>()

/** Rows keep a number each, as those of the socket do. */
function found({ table, warnings }: Found, since: number, read: Read): Window {
  const rows = read(table).map((row): Row => {
    const id = `${row.cluster}/${row.apiVersion}/${row.kind}/${row.namespace}/${row.name}`
    if (!keys.has(id)) keys.set(id, keys.size + 1)
    return { ...row, key: keys.get(id)! }
  })
  return {
    ...nothing,
    state: "live",
    since,
    total: rows.length,
    exact: !table.metadata.continue,
    columns: table.columnDefinitions,
    rows,
    warnings,
  }
}

/** Pure: the texts of Warning headers, which are put together with commas: 299 - "text", 299 - "text". */
export function warningsOf(header: string | null): string[] {
  return [...(header ?? "").matchAll(/\d{3} \S+ "((?:\\.|[^"\\])*)"/g)].map((m) => m[1]!.replace(/\\(.)/g, "$1"))
}
