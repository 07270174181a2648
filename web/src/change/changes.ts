import { hasWords } from "../part/filter"
// What changed in the fleet, put together of the answers to changedSince: one for each kind.

import type { Change } from "../history/steps"
import type { Difference } from "../hub/fields"
import type { Kind } from "../hub/kinds"

/** The kinds that people change, and what breaks when they do. Pods and Events come and go by themselves: they are asked for by name. */
export const watched = [
  ..."Deployment.apps StatefulSet.apps DaemonSet.apps Service Ingress.networking.k8s.io NetworkPolicy.networking.k8s.io ConfigMap Secret".split(" "),
  ..."CronJob.batch Job.batch ServiceAccount Role.rbac.authorization.k8s.io RoleBinding.rbac.authorization.k8s.io PersistentVolumeClaim".split(" "),
  ..."Namespace Node ClusterRole.rbac.authorization.k8s.io ClusterRoleBinding.rbac.authorization.k8s.io".split(" "),
  "CustomResourceDefinition.apiextensions.k8s.io",
]

const unitMs: Record<string, number> = { m: 60_000, h: 3_600_000, d: 86_400_000 }

/** The start of the changes of a span such as -1h: the begin of the history, if that is later. */
export function within(span: string, begins: string, now: number): { since: string; from?: string } {
  const [, count = "", unit = ""] = /^-(\d+)([mhd])$/.exec(span) ?? []
  const start = now - Number(count) * (unitMs[unit] ?? Number.NaN)
  return begins && new Date(begins).getTime() > start ? { since: begins, from: begins } : { since: span }
}

/** The begin of the history, from the message that refuses an earlier moment. */
export const beginOf = (message: string): string | undefined => /known from (\d{4}-\d\d-\d\dT[\d:.]+Z)/.exec(message)?.[1]

/** The same change of objects of one name in several clusters: one row. */
export interface Row {
  key: string
  kind: Kind
  namespace?: string
  name: string
  change: Change["change"]
  clusters: string[]
  /** The last of the times. */
  time?: string
  by: string[]
  cause?: string
  fields: Difference[]
}

export function rows(answers: { kind: Kind; items: Change[] }[]): Row[] {
  const all = new Map<string, Row>()
  for (const { kind, items } of answers) {
    for (const c of items) {
      const key = JSON.stringify([kind.of, c.namespace, c.name, c.change, c.fields])
      const row = all.get(key) ?? {
        key,
        kind,
        namespace: c.namespace,
        name: c.name,
        change: c.change,
        clusters: [],
        by: [],
        cause: c.cause,
        fields: c.fields ?? [],
      }
      all.set(key, row)
      if (!row.clusters.includes(c.cluster)) row.clusters.push(c.cluster)
      if ((c.time ?? "") > (row.time ?? "")) row.time = c.time
      for (const by of c.by ?? []) if (!row.by.includes(by.manager)) row.by.push(by.manager)
    }
  }
  for (const row of all.values()) row.clusters.sort()
  return [...all.values()].sort((a, b) => (b.time ?? "").localeCompare(a.time ?? "") || a.kind.of.localeCompare(b.kind.of) || a.name.localeCompare(b.name))
}

/** Rows in which each word is found. */
export function sift(all: Row[], words: string): Row[] {
  const texts = (r: Row) => [r.kind.kind, r.namespace, r.name, r.change, r.cause, ...r.clusters, ...r.by, ...r.fields.map((f) => f.path)]
  return all.filter((r) => hasWords(words, texts(r)))
}

/** A value of a field in one line. */
export function brief(v: unknown, most = 120): string {
  const text = typeof v === "string" ? v : JSON.stringify(v)
  return text === undefined ? "" : text.length > most ? `${text.slice(0, most - 1)}…` : text
}
