// Pure: how old the data of a cluster is. The bar at the top, cards, tables and pages of objects
// ask here, and so show the same age.
import type { Tone } from "../part/Mark"
import type { Cluster } from "./window"

export type Fleet = { clusters: readonly Cluster[]; connected: boolean }

/**
 * lost: the cluster does not answer, and all its data is as it was at `since`. behind: some of
 * its types are. reading: some were not read yet. unknown: the hub does not say.
 */
export type Freshness = { state: "current" | "reading" | "behind" | "lost" | "unknown"; since?: string }

const states: Record<string, Freshness["state"]> = { Synced: "current", Reading: "reading", Behind: "behind", Unknown: "lost" }

export function freshness({ clusters, connected }: Fleet, cluster: string): Freshness {
  const c = connected ? clusters.find((one) => one.name === cluster) : undefined
  const state = (c && states[c.state]) ?? "unknown"
  return { state, since: state === "current" ? undefined : c?.since || undefined }
}

/**
 * freshnessIn is about objects of one type in a cluster. stale is when the type was last
 * current, if the API says that it is not; "" is an unknown time. All types of a lost cluster
 * have one age: its own.
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
