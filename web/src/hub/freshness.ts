// Pure: the age of a cluster's data. The bar at the top, cards, tables and object pages use these
// functions, so that they show the same age.
import type { Tone } from "../part/Mark"
import type { Key } from "../text/text"
import type { Cluster } from "./window"

export type Fleet = { clusters: readonly Cluster[]; connected: boolean }

/**
 * lost: the cluster does not answer; all its data is from `since`. behind: the data of some of
 * its types is stale. reading: some types were not read yet. unknown: the hub has not reported.
 * lost without since: the hub has not reached the cluster yet.
 */
export type Freshness = { state: "current" | "reading" | "behind" | "lost" | "unknown"; since?: string }

const states: Record<string, Freshness["state"]> = { Synced: "current", Reading: "reading", Behind: "behind", Unknown: "lost" }

export function freshness({ clusters, connected }: Fleet, cluster: string): Freshness {
  const c = connected ? clusters.find((one) => one.name === cluster) : undefined
  const state = (c && states[c.state]) ?? "unknown"
  return { state, since: state === "current" ? undefined : c?.since || undefined }
}

/**
 * freshnessIn is the freshness of objects of one type in a cluster. stale is when the type was
 * last current, if the API reports it as stale; "" is an unknown time. All types of a lost
 * cluster have the age of the cluster.
 */
export function freshnessIn(fleet: Fleet, cluster: string, stale: string | undefined): Freshness {
  const whole = freshness(fleet, cluster)
  if (whole.state === "lost") return { ...whole, since: whole.since ?? (stale || undefined) }
  return stale === undefined ? { state: "current" } : { state: "behind", since: stale || undefined }
}

export function toneOfFreshness({ state }: Freshness): Tone {
  if (state === "current") return "good"
  return state === "behind" || state === "reading" ? "warn" : "unknown"
}

/**
 * lagText returns the text that explains the freshness of a cluster. Its parameters are {name}
 * and, if there is an age, {since}.
 */
export function lagText({ state, since }: Freshness): Key {
  if (since) return state === "lost" || state === "unknown" ? "layout.lagUnknown" : "layout.lagBehind"
  return state === "lost" ? "layout.lagNever" : state === "reading" ? "layout.lagReading" : "cluster.lagUnknown"
}
