// What changed in the fleet, put together of the answers to changedSince: one for each type.

export interface FieldDifference {
  path: string
  before?: unknown
  after?: unknown
  hidden?: boolean
}

export interface ObjectChange {
  cluster: string
  namespace?: string
  name: string
  uid: string
  change: "Created" | "Seen" | "Updated" | "Deleted" | "Recreated"
  time?: string
  by?: { manager: string; operation?: string; subresource?: string }[]
  cause?: string
  fields?: FieldDifference[]
}

export interface Type {
  group: string
  version: string
  resource: string
  kind: string
}

/** The types that people change, and what breaks when they do. Pods and Events come and go by themselves: they are asked for by name. */
export const types: Type[] = [
  { group: "apps", version: "v1", resource: "deployments", kind: "Deployment" },
  { group: "apps", version: "v1", resource: "statefulsets", kind: "StatefulSet" },
  { group: "apps", version: "v1", resource: "daemonsets", kind: "DaemonSet" },
  { group: "", version: "v1", resource: "services", kind: "Service" },
  { group: "networking.k8s.io", version: "v1", resource: "ingresses", kind: "Ingress" },
  { group: "networking.k8s.io", version: "v1", resource: "networkpolicies", kind: "NetworkPolicy" },
  { group: "", version: "v1", resource: "configmaps", kind: "ConfigMap" },
  { group: "", version: "v1", resource: "secrets", kind: "Secret" },
  { group: "batch", version: "v1", resource: "cronjobs", kind: "CronJob" },
  { group: "batch", version: "v1", resource: "jobs", kind: "Job" },
  { group: "", version: "v1", resource: "serviceaccounts", kind: "ServiceAccount" },
  { group: "rbac.authorization.k8s.io", version: "v1", resource: "roles", kind: "Role" },
  { group: "rbac.authorization.k8s.io", version: "v1", resource: "rolebindings", kind: "RoleBinding" },
  { group: "", version: "v1", resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim" },
  { group: "", version: "v1", resource: "namespaces", kind: "Namespace" },
  { group: "", version: "v1", resource: "nodes", kind: "Node" },
  { group: "rbac.authorization.k8s.io", version: "v1", resource: "clusterroles", kind: "ClusterRole" },
  { group: "rbac.authorization.k8s.io", version: "v1", resource: "clusterrolebindings", kind: "ClusterRoleBinding" },
  { group: "apiextensions.k8s.io", version: "v1", resource: "customresourcedefinitions", kind: "CustomResourceDefinition" },
]

export const clusterScoped = ["namespaces", "nodes", "clusterroles", "clusterrolebindings", "customresourcedefinitions"]

export function typeName(t: Type): string {
  return t.group ? `${t.resource}.${t.group}` : t.resource
}

export function typePath(t: Type, namespace?: string): string {
  return `${t.group ? `/apis/${t.group}` : "/api"}/${t.version}${namespace ? `/namespaces/${encodeURIComponent(namespace)}` : ""}/${t.resource}`
}

/** The same change of objects of one name in several clusters: one row. */
export interface Row {
  key: string
  type: Type
  namespace?: string
  name: string
  change: ObjectChange["change"]
  clusters: string[]
  /** The last of the times. */
  time?: string
  by: string[]
  cause?: string
  fields: FieldDifference[]
}

export function rows(answers: { type: Type; items: ObjectChange[] }[]): Row[] {
  const all = new Map<string, Row>()
  for (const { type, items } of answers) {
    for (const c of items) {
      const key = JSON.stringify([typeName(type), c.namespace, c.name, c.change, c.fields])
      const row = all.get(key) ?? {
        key,
        type,
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
  return [...all.values()].sort(
    (a, b) => (b.time ?? "").localeCompare(a.time ?? "") || typeName(a.type).localeCompare(typeName(b.type)) || a.name.localeCompare(b.name),
  )
}

/** Rows in which each word is found. */
export function sift(all: Row[], words: string): Row[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean)
  return all.filter((r) => {
    const text = [r.type.kind, r.namespace, r.name, r.change, r.cause, ...r.clusters, ...r.by, ...r.fields.map((f) => f.path)].join(" ").toLowerCase()
    return wanted.every((w) => text.includes(w))
  })
}

/** A value of a field in one line. */
export function brief(v: unknown, most = 120): string {
  const text = typeof v === "string" ? v : JSON.stringify(v)
  return text === undefined ? "" : text.length > most ? `${text.slice(0, most - 1)}…` : text
}
