import type { ExplainedCluster, Explanation } from "../placement/explained"

// Why an object is, or is not, in each cluster: the stored decision, put in an order in which people ask.

/** The reasons of verdicts that there are words for; of others the API's own are shown. */
export const reasons = [
  "Fenced",
  "Leaving",
  "AffinityWrong",
  "NotSelected",
  "OtherGroup",
  "NoWeight",
  "NoGroup",
  "Tainted",
  "Unreachable",
  "OutOfBounds",
  "APINotServed",
  "APIUnknown",
  "AffinityGroup",
  "AntiAffinity",
  "UnknownCluster",
  "Spread",
  "NoRoom",
  "NoReplicas",
  "StaysFenced",
] as const
export type Reason = (typeof reasons)[number]

export function known(reason: string): reason is Reason {
  return (reasons as readonly string[]).includes(reason)
}

export type Stand = "placed" | "leaving" | "stays" | "out" | "unknown"

/** Where a cluster stands: placed, on its way out, placed though it would not be now, out for a reason, or nobody knows why. */
export function stand(c: ExplainedCluster): Stand {
  if (c.leaves) return "leaving"
  if (c.placed) return c.verdicts?.length ? "stays" : "placed"
  return c.verdicts?.length ? "out" : "unknown"
}

const order: Stand[] = ["placed", "stays", "leaving", "unknown", "out"]

export interface Group {
  stand: Stand
  clusters: ExplainedCluster[]
}

/** The clusters by where they stand; of a thousand that the affinity leaves out, those first that were close. */
export function groups(clusters: ExplainedCluster[]): Group[] {
  const close = (c: ExplainedCluster) => {
    const first = c.verdicts?.[0]?.reason
    return first === "NotSelected" || first === "OtherGroup" || first === "Fenced" ? 1 : 0
  }
  return order
    .map((s) => ({
      stand: s,
      clusters: clusters.filter((c) => stand(c) === s).sort((a, b) => close(a) - close(b) || a.name.localeCompare(b.name, "en", { numeric: true })),
    }))
    .filter((g) => g.clusters.length > 0)
}

/** Of what the decision is, if it is not of now. */
export function outdated(e: Explanation): "object" | "policy" | "decision" | undefined {
  if (e.decision && !e.decision.current) return "decision"
  if (e.current || e.state === "Unclaimed" || e.state === "Reserved") return undefined
  return (e.generation ?? 0) < (e.of.generation ?? 0) ? "object" : "policy"
}
