import { useAnswer } from "../hub/answer"
import { mirrored, request, type Table } from "../hub/client"
import { nothing, type Row, type Window } from "../hub/window"

const most = 500
const everyMs = 15_000

type Found = { table: Table; warnings: string[] }

/** A search of every kind, in the shape of a window: its first rows, asked again now and then. */
export function useSearch(query: string | undefined): Window {
  const ask = async (signal: AbortSignal): Promise<Found> => {
    const accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    const answer = await request(`${mirrored()}/search?${query}`, { accept, query: { limit: most }, signal })
    return { table: await answer.json(), warnings: warningsOf(answer.headers.get("Warning")) }
  }
  const answer = useAnswer(query === undefined ? undefined : ask, query ?? "", everyMs)
  if (answer.error) {
    const refused = answer.error.code >= 400 && answer.error.code < 500
    const kept = answer.data ? found(answer.data, answer.since) : nothing
    if (refused) return { ...nothing, state: "refused", status: answer.error.status }
    return { ...kept, state: answer.data ? "stale" : "unknown", status: answer.error.status }
  }
  return answer.data ? found(answer.data, answer.since) : nothing
}

const keys = new Map<string, number>()

/** Pure, but for the numbers that rows keep. */
function found({ table, warnings }: Found, since: number): Window {
  const index = (name: string) => table.columnDefinitions.findIndex((c) => c.name === name)
  const [kind, cluster, namespace, name, version, created] = [
    "Kind",
    "Cluster",
    "Namespace",
    "Name",
    "API Version",
    "Created",
  ].map(index)
  const rows = table.rows.map(({ cells }): Row => {
    const text = (i: number | undefined) => String(cells[i ?? -1] ?? "")
    const row = {
      key: 0,
      cells,
      cluster: text(cluster),
      namespace: text(namespace),
      name: text(name),
      uid: "",
      apiVersion: text(version),
      kind: text(kind),
      created: text(created),
    }
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
