import { type Cluster, capacity, cordoned, type Health, type Use, verdictNow } from "../cluster/cluster"
import { type Fleet, type Freshness, freshness } from "../hub/freshness"
import { hasWords } from "../part/filter"

// The fleet as tiles. Users who may list Clusters get all details. Others get the clusters that
// they may see, with their state from the live socket.

export interface Tile {
  name: string
  health: Health | "unknown"
  since?: string
  message?: string
  version?: string
  where?: string
  nodes?: { total: number; ready: number }
  uses: Use[]
  fresh: Freshness
  cordoned: boolean
  agent: boolean
}

/** Faulty clusters first, ready ones last; equals by name. */
const order: (Health | "unknown")[] = ["unready", "unreachable", "warning", "leaving", "building", "joining", "unknown", "ready"]

/** The state from the live socket, as the health of a Cluster. */
export function liveHealth({ state }: Freshness): Health | "unknown" {
  return ({ current: "ready", behind: "warning", reading: "joining", lost: "unreachable", unknown: "unknown" } as const)[state]
}

export function tiles(clusters: Cluster[] | undefined, fleet: Fleet): Tile[] {
  const of = clusters?.map((c): Tile => {
    const fresh = freshness(fleet, c.metadata.name)
    const v = verdictNow(c, fresh)
    return {
      name: c.metadata.name,
      health: v.health,
      since: v.since,
      message: v.health === "ready" ? undefined : v.by?.message,
      version: c.status?.kubernetesVersion,
      where: [c.spec.provider, c.spec.region, ...(c.spec.zones ?? [])].filter(Boolean).join(" · ") || undefined,
      nodes: c.status?.nodeSummary,
      uses: capacity(c).filter((u) => ["cpu", "memory", "pods"].includes(u.resource)),
      fresh,
      cordoned: cordoned(c),
      agent: c.spec.syncMode === "Pull",
    }
  })
  const all =
    of ??
    fleet.clusters.map(({ name }): Tile => {
      const fresh = freshness(fleet, name)
      return { name, health: liveHealth(fresh), since: fresh.since, fresh, uses: [], cordoned: false, agent: false }
    })
  return all.sort((a, b) => order.indexOf(a.health) - order.indexOf(b.health) || a.name.localeCompare(b.name, "en", { numeric: true }))
}

/** The tiles that contain each of the words, and their number by health. */
export function sift(all: Tile[], words: string, health?: string): { shown: Tile[]; counts: Partial<Record<Tile["health"], number>> } {
  const matching = all.filter((t) => hasWords(words, [t.name, t.version, t.where, t.health, t.message]))
  const counts: Partial<Record<Tile["health"], number>> = {}
  for (const t of matching) counts[t.health] = (counts[t.health] ?? 0) + 1
  return { shown: health ? matching.filter((t) => t.health === health) : matching, counts }
}

export const healths = order

/**
 * Who paused failover and why, by the data of its ConfigMap; undefined: it is not paused. For the
 * hub, a value that it cannot read means paused.
 */
export function paused(data?: Record<string, string | undefined>): string | undefined {
  return data && data.paused !== "false" ? [data.by, data.why].filter(Boolean).join(": ") : undefined
}
