import type { Freshness } from "../hub/freshness"
import { amount, quantity } from "./quantity"

// The fields of a Cluster that the pages use, and their meaning.

export interface Condition {
  type: string
  status: "True" | "False" | "Unknown"
  reason?: string
  message?: string
  lastTransitionTime?: string
  observedGeneration?: number
}

export interface Taint {
  key: string
  value?: string
  effect: string
}

export interface Host {
  name: string
  address: string
  internalAddress?: string
  user?: string
  port?: number
}

export interface Cluster {
  metadata: { name: string; uid?: string; labels?: Record<string, string>; creationTimestamp?: string; deletionTimestamp?: string }
  spec: {
    syncMode?: "Push" | "Pull"
    apiEndpoint?: string
    provider?: string
    region?: string
    zones?: string[]
    taints?: Taint[]
    deletionPolicy?: "Orphan" | "Delete"
    agent?: { profile?: "All" | "Placement" | "Mirror"; namespaces?: string[] }
    provision?: { hosts?: Host[]; kubernetes?: { version?: string }; deletionPolicy?: "Orphan" | "Delete" }
  }
  status?: {
    kubernetesVersion?: string
    apis?: { count: number; completeness: string }
    nodeSummary?: { total: number; ready: number }
    resourceSummary?: Record<"allocatable" | "allocated" | "allocating", Record<string, string> | undefined>
    provision?: {
      operation?: string
      version?: string
      certificatesExpire?: string
      nodes?: { hostname: string; internalIP?: string; roles?: string[] }[]
    }
    agent?: {
      version?: string
      address?: string
      replicas: number
      spares: number
      connectedSince?: string
      certificateExpires?: string
    }
    conditions?: Condition[]
  }
}

export function condition(c: Cluster, type: string): Condition | undefined {
  return c.status?.conditions?.find((x) => x.type === type)
}

/**
 * The state of a cluster. unreachable is an unknown state, not a known fault: grey, never red.
 * joining and building are in progress. warning is Ready with something that expires soon.
 */
export type Health = "ready" | "warning" | "unready" | "unreachable" | "joining" | "building" | "leaving"

export interface Verdict {
  health: Health
  since?: string
  /** The condition that is the reason. */
  by?: Condition
}

const warnings = ["CertificatesExpiring", "CredentialsExpiring"]

export function verdict(c: Cluster): Verdict {
  const of = (health: Health, by?: Condition, since = by?.lastTransitionTime): Verdict => ({ health, by, since })
  const ready = condition(c, "Ready")
  const reachable = condition(c, "Reachable")
  if (c.metadata.deletionTimestamp) return of("leaving", ready, c.metadata.deletionTimestamp)
  if (!c.status?.kubernetesVersion && reachable?.reason === "WaitingForAgent") return of("joining", reachable)
  const provisioned = condition(c, "Provisioned")
  if (c.spec.provision && !c.status?.kubernetesVersion) {
    return provisioned?.status === "False" && provisioned.reason !== "Provisioning" ? of("unready", provisioned) : of("building", provisioned)
  }
  if (!ready) return of("joining", reachable, c.metadata.creationTimestamp)
  if (reachable && reachable.status !== "True") return of("unreachable", reachable)
  if (ready.status !== "True") {
    // The first lists of the mirror are in progress, which is no fault.
    return ready.reason === "Mirroring" ? of("joining", ready) : of(ready.status === "Unknown" ? "unreachable" : "unready", ready)
  }
  const warning = warnings.map((w) => condition(c, w)).find((w) => w?.status === "True")
  return warning ? of("warning", warning) : of("ready", ready)
}

/**
 * The verdict, corrected by the live state of the data: the conditions may not show yet that a
 * cluster stopped answering.
 */
export function verdictNow(c: Cluster, is: Freshness): Verdict {
  const v = verdict(c)
  if (is.state !== "lost" || !["ready", "warning", "unready", "unreachable"].includes(v.health)) return v
  return { health: "unreachable", since: is.since ?? v.since, by: v.health === "unreachable" ? v.by : undefined }
}

export interface Use {
  resource: string
  allocatable: number
  allocated: number
  /** Requested divided by allocatable; more than 1 is possible. */
  ratio: number
}

/** The requested share of each resource: cpu, memory and pods first, then the others by name. */
export function capacity(c: Cluster): Use[] {
  const sum = c.status?.resourceSummary
  const first = ["cpu", "memory", "pods"]
  const rank = (r: string) => (first.indexOf(r) + first.length + 1) % (first.length + 1)
  return Object.entries(sum?.allocatable ?? {})
    .flatMap(([resource, text]) => {
      const allocatable = quantity(text)
      if (!allocatable) return []
      const allocated = quantity(sum?.allocated?.[resource]) ?? 0
      return [{ resource, allocatable, allocated, ratio: allocated / allocatable }]
    })
    .sort((a, b) => rank(a.resource) - rank(b.resource) || a.resource.localeCompare(b.resource))
}

/** The used and the allocatable amount of a resource; "?" stands for an unknown one. */
export function inUse(resource: string, used: string | number | undefined, allocatable: string | undefined): string {
  const known = [quantity(used), quantity(allocatable)]
  return known.every((n) => n === undefined) ? "" : known.map((n) => (n === undefined ? "?" : amount(resource, n))).join(" / ")
}

/** The taint of a cordoned cluster, which gets no new objects. */
export const unschedulable: Taint = { key: "cluster.orrery.dev/unschedulable", effect: "NoSchedule" }

export function cordoned(c: Cluster): boolean {
  return c.spec.taints?.some((t) => t.key === unschedulable.key) ?? false
}

/** The taints after one is added or removed. Key and effect identify a taint. */
export function retaint(taints: Taint[] | undefined, taint: Taint, on: boolean): Taint[] {
  const others = (taints ?? []).filter((t) => t.key !== taint.key || t.effect !== taint.effect)
  return on ? [...others, taint] : others
}

/** Parses a taint as kubectl writes it, key[=value]:effect; undefined: not a taint. */
export function parseTaint(text: string): Taint | undefined {
  const m = /^([^=:\s]+)(?:=([^:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)$/.exec(text.trim())
  return m ? { key: m[1] as string, ...(m[2] ? { value: m[2] } : {}), effect: m[3] as string } : undefined
}

export function taintText(t: Taint): string {
  return `${t.key}${t.value ? `=${t.value}` : ""}:${t.effect}`
}
