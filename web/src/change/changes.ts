import { hasWords } from "../part/filter"
// What changed in the fleet: the answers to changedSince, one for each kind, merged into rows.

import type { Change } from "../history/steps"
import type { Difference } from "../hub/fields"
import type { Kind } from "../hub/kinds"

/**
 * The kinds that people change, and those that break because of it. Pods and Events change all
 * the time by themselves and are shown only if the user selects them by name.
 */
export const watched = [
  ..."Deployment.apps StatefulSet.apps DaemonSet.apps Service Ingress.networking.k8s.io NetworkPolicy.networking.k8s.io ConfigMap Secret".split(" "),
  ..."CronJob.batch Job.batch ServiceAccount Role.rbac.authorization.k8s.io RoleBinding.rbac.authorization.k8s.io PersistentVolumeClaim".split(" "),
  ..."Namespace Node ClusterRole.rbac.authorization.k8s.io ClusterRoleBinding.rbac.authorization.k8s.io".split(" "),
  "CustomResourceDefinition.apiextensions.k8s.io",
]

const unitMs: Record<string, number> = { m: 60_000, h: 3_600_000, d: 86_400_000 }

/**
 * Returns where the changes of a span such as -1h begin: at the start of the history (begins), if
 * that is later than the start of the span. from is set only then.
 */
export function within(span: string, begins: string, now: number): { since: string; from?: string } {
  const [, count = "", unit = ""] = /^-(\d+)([mhd])$/.exec(span) ?? []
  const start = now - Number(count) * (unitMs[unit] ?? Number.NaN)
  return begins && new Date(begins).getTime() > start ? { since: begins, from: begins } : { since: span }
}

/**
 * The start of the history, from the error that refuses an earlier time. undefined: another
 * error.
 */
export const beginOf = (message: string): string | undefined => /known from (\d{4}-\d\d-\d\dT[\d:.]+Z)/.exec(message)?.[1]

/** The same change to objects of one name in several clusters, shown as one row. */
export interface Row {
  key: string
  kind: Kind
  namespace?: string
  name: string
  change: Change["change"]
  clusters: string[]
  /** The latest of their times. */
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

/** Rows that contain each of the words. */
export function sift(all: Row[], words: string): Row[] {
  const texts = (r: Row) => [r.kind.kind, r.namespace, r.name, r.change, r.cause, ...r.clusters, ...r.by, ...r.fields.map((f) => f.path)]
  return all.filter((r) => hasWords(words, texts(r)))
}

/** A value of a field in one line, cut to at most `most` characters. */
export function brief(v: unknown, most = 120): string {
  const text = typeof v === "string" ? v : JSON.stringify(v)
  return text === undefined ? "" : text.length > most ? `${text.slice(0, most - 1)}…` : text
}
