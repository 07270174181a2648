/** Pure: the URLs of the page's screens, below its root. The URL is the state. */
import { encode } from "./client"
import type { Kind } from "./kinds"

export type Ref = { cluster: string; kind: string; group: string; namespace: string; name: string }

/** KIND.GROUP/NAMESPACE/NAME; without a namespace KIND.GROUP/NAME. */
export function ofRef(r: Omit<Ref, "cluster">): string {
  return [r.group ? `${r.kind}.${r.group}` : r.kind, ...(r.namespace ? [r.namespace] : []), r.name].join("/")
}

export function parseOf(of: string, cluster = ""): Ref | undefined {
  const parts = of.split("/")
  const name = parts.at(-1)
  if (parts.length < 2 || parts.length > 3 || !parts[0] || !name) return undefined
  const dot = parts[0].indexOf(".")
  return {
    cluster,
    kind: dot < 0 ? parts[0] : parts[0].slice(0, dot),
    group: dot < 0 ? "" : parts[0].slice(dot + 1),
    namespace: parts.length === 3 ? parts[1]! : "",
    name,
  }
}

/**
 * What a deletion of the object affects besides it: the membership of a cluster ("fleet"), all
 * objects of a namespace, or all of a kind.
 */
export function takesAlong({ cluster, kind, group }: Pick<Ref, "cluster" | "kind" | "group">): "fleet" | "namespace" | "kind" | undefined {
  if (kind === "Cluster" && group === "cluster.orrery.dev") return cluster ? undefined : "fleet"
  if (kind === "Namespace" && !group) return "namespace"
  return kind === "CustomResourceDefinition" ? "kind" : undefined
}

export function groupOf(apiVersion: string): string {
  const slash = apiVersion.indexOf("/")
  return slash < 0 ? "" : apiVersion.slice(0, slash)
}

/** A link to an object; with cluster "" to an object of the hub. */
export function objectLink(r: Ref, more: Record<string, string> = {}): string {
  return `/object?${encode({ cluster: r.cluster, of: ofRef(r), ...more })}`
}

export function tableLink(kind: Pick<Kind, "of"> | string, more: Record<string, string> = {}): string {
  return `/table?${encode({ kind: typeof kind === "string" ? kind : kind.of, ...more })}`
}

export const clusterLink = (name: string) => `/clusters/${encodeURIComponent(name)}`
export const placementsLink = (r: Omit<Ref, "cluster">) => `/placements?${encode({ of: ofRef(r) })}`
export const whyLink = (r: Omit<Ref, "cluster">) => `/why?${encode({ of: ofRef(r) })}`
