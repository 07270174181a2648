/** Pure: the selection of rows, and the actions on it. */
import { groupOf, takesAlong } from "../hub/link"
import type { Row } from "../hub/live"

/** The identity of a row in the fleet, also for rows without a UID. */
export const idOf = (row: Row) => `${row.cluster}/${row.apiVersion}/${row.kind}/${row.namespace}/${row.name}/${row.uid}`

export function toggle(selected: Map<string, Row>, row: Row): Map<string, Row> {
  const next = new Map(selected)
  if (!next.delete(idOf(row))) next.set(idOf(row), row)
  return next
}

export function byCluster(rows: Iterable<Row>): [cluster: string, rows: Row[]][] {
  const groups = new Map<string, Row[]>()
  for (const row of rows) groups.set(row.cluster, [...(groups.get(row.cluster) ?? []), row])
  return [...groups].sort(([a], [b]) => a.localeCompare(b))
}

export type Act = "delete" | "restart" | "scale" | "cordon" | "uncordon"

/** The actions on a kind in clusters. */
export function actsOf(kind: { group: string; resource: string }): Act[] {
  const name = kind.group ? `${kind.resource}.${kind.group}` : kind.resource
  switch (name) {
    case "deployments.apps":
    case "statefulsets.apps":
      return ["restart", "scale", "delete"]
    case "daemonsets.apps":
      return ["restart", "delete"]
    case "replicasets.apps":
      return ["scale", "delete"]
    case "nodes":
      return ["cordon", "uncordon", "delete"]
    default:
      return ["delete"]
  }
}

/** The actions that several kinds have in common. */
export const actsOfAll = (kinds: { group: string; resource: string }[]): Act[] =>
  kinds.map(actsOf).reduce((common, acts) => common.filter((act) => acts.includes(act)), actsOf(kinds[0] ?? { group: "", resource: "" }))

/** The merge patch of an action. */
export function patchOf(act: Exclude<Act, "delete">, now: Date, replicas: number): object {
  switch (act) {
    case "restart":
      return { spec: { template: { metadata: { annotations: { "kubectl.kubernetes.io/restartedAt": now.toISOString() } } } } }
    case "scale":
      return { spec: { replicas } }
    case "cordon":
      return { spec: { unschedulable: true } }
    case "uncordon":
      return { spec: { unschedulable: null } }
  }
}

/** Deleting more objects than this must be confirmed by typing their number. */
export const many = 5

/** What is deleted with an object besides its copies. */
export const alongWith = (row: Row) => takesAlong({ cluster: row.cluster, kind: row.kind, group: groupOf(row.apiVersion) })

/** Runs f for each item, atOnce at a time, and reports each result. */
export async function forEach<T>(items: T[], atOnce: number, f: (item: T) => Promise<void>, report: (item: T, error?: Error) => void): Promise<void> {
  const rest = [...items]
  const worker = async () => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) {
      const mine = item
      await f(mine).then(
        () => report(mine),
        (e: Error) => report(mine, e),
      )
    }
  }
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker))
}
