import type { Cluster } from "../hub/live"
import type { Tone } from "../part/Mark"

/** Pure: unknown is what nobody can say now, behind what is older than it looks. */
export function toneOfCluster(c: Pick<Cluster, "state">): Tone {
  if (c.state === "Synced") return "good"
  return c.state === "Behind" || c.state === "Reading" ? "warn" : "unknown"
}
