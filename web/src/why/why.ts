import type { ExplainedCluster, Explanation, Verdict, Wait } from "../placement/explained"
import en from "../text/en"

// Why an object is, or is not, in each cluster: the stored decision, ordered for people.

/**
 * Whether there is a text for a word of the API: the reason of a verdict, or why an eviction
 * waits. Other words are shown as in the API.
 */
export function known(reason: string): reason is keyof (typeof en)["why"] {
  return /^[A-Z]/.test(reason) && Object.hasOwn(en.why, reason)
}

export type Stand = "placed" | "leaving" | "stays" | "out" | "unknown"

/**
 * The state of a cluster: placed; leaving; stays, though it would not be chosen now; out for a
 * reason; or unknown.
 */
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

/**
 * The clusters by their state. Clusters that nearly qualified come before those that the affinity
 * or ClusterAccess leaves out.
 */
export function groups(clusters: ExplainedCluster[]): Group[] {
  const close = (c: ExplainedCluster) => {
    const first = c.verdicts?.[0]?.reason
    return first === "NotSelected" || first === "OtherGroup" || first === "Fenced" ? 1 : 0
  }
  const sorted = clusters.toSorted((a, b) => close(a) - close(b) || a.name.localeCompare(b.name, "en", { numeric: true }))
  const all = order.map((s) => ({ stand: s, clusters: sorted.filter((c) => stand(c) === s) }))
  return all.filter((g) => g.clusters.length > 0)
}

/**
 * What is out of date in the explanation: the object, its policy or the stored decision;
 * undefined: nothing.
 */
export function outdated(e: Explanation): "object" | "policy" | "decision" | undefined {
  if (e.decision && !e.decision.current) return "decision"
  if (e.current || e.state === "Unclaimed" || e.state === "Reserved") return undefined
  return (e.generation ?? 0) < (e.of.generation ?? 0) ? "object" : "policy"
}

export interface Texts {
  message: string
  waits: Wait[]
  outcome: string
}

/** An eviction that waits: the object is to leave the cluster because of the taint. */
export interface Held extends Verdict {
  cluster: string
  taint: string
}

/** The clause of the condition Scheduled about an eviction that waits. */
const heldClause = /(?:^|; )to leave (\S+) because of taint (\S+), waits: (\w+) \((.*?)\)(?=; |$)/gs

/** The evictions that wait, by the message of the decision. */
export function held(e: Explanation): Held[] {
  const found = (e.decision?.message ?? "").matchAll(heldClause)
  return [...found].map(([, cluster = "", taint = "", reason = "", message = ""]) => ({ cluster, taint, reason, message }))
}

/**
 * texts returns the texts of the page above its list of clusters, each sentence once. In the API
 * the message of the decision is also the end of the summary and a wait, with a clause for each
 * cluster, and one for each eviction that waits.
 */
export function texts(e: Explanation): Texts {
  const message = withoutClusters(e.message, e.clusters ?? [])
  const waits = (e.waits ?? [])
    .map((w) => ({ ...w, message: withoutClusters(w.message, e.clusters ?? []) }))
    .filter((w, i, all) => w.clusters?.length || !(says(message, w.message) || all.findIndex((o) => o.message === w.message) < i))
  const { reason = "", message: decided = "" } = e.decision ?? {}
  const outcome = withoutClusters(decided, e.clusters ?? [])
  return {
    message,
    waits,
    outcome: outcome && ![message, ...waits.map((w) => w.message)].some((text) => says(text, outcome)) ? `${reason}: ${outcome}` : reason,
  }
}

/**
 * says reports whether a text contains another as whole clauses, so not "1 cluster" in "in 1
 * clusters".
 */
function says(text: string, other: string): boolean {
  const at = text.lastIndexOf(other)
  if (other === "" || at < 0) return false
  return (at === 0 || /[;:] $/.test(text.slice(0, at))) && /^(;|$)/.test(text.slice(at + other.length))
}

function withoutClusters(text: string, clusters: ExplainedCluster[]): string {
  let cut = false
  let rest = text.replace(heldClause, "").replace(/^; /, "")
  for (const c of clusters) {
    for (const v of c.verdicts ?? []) {
      const clause = `; ${c.name}: ${v.message}`
      const at = v.message ? rest.indexOf(clause) : -1
      if (at < 0 || !/^(;|$)/.test(rest.slice(at + clause.length))) continue
      rest = rest.slice(0, at) + rest.slice(at + clause.length)
      cut = true
    }
  }
  // The number of clauses that the API left out belongs to the clusters, too.
  return cut ? rest.replace(/; and \d+ more(?=;|$)/, "") : rest
}
