import { type Answer, useAnswer, useGet } from "../hub/answer"
import { list } from "../hub/client"
import { useRights, where } from "../hub/rights"
import type { Cluster } from "./cluster"

export const clustersPath = "/apis/cluster.orrery.dev/v1alpha1/clusters"
export const clusterPath = (name: string) => `${clustersPath}/${encodeURIComponent(name)}`

/** The Clusters, for users who may list them. allowed is undefined until that is known. */
export function useClusters(everyMs = 10_000): Answer<Cluster[]> & { allowed?: boolean } {
  const rights = useRights()
  const allowed = rights && where(rights, "list", "cluster.orrery.dev", "clusters").everywhere
  const ask = allowed ? async (signal: AbortSignal) => (await list<Cluster>(clustersPath, undefined, signal)).items : undefined
  return { ...useAnswer<Cluster[]>(ask, "clusters", everyMs), allowed }
}

export function useCluster(name: string, everyMs = 5_000): Answer<Cluster> & { allowed?: boolean } {
  const rights = useRights()
  const allowed = rights && where(rights, "list", "cluster.orrery.dev", "clusters").everywhere
  return { ...useGet<Cluster>(allowed ? clusterPath(name) : undefined, undefined, everyMs), allowed }
}
