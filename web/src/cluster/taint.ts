import { get, patch, type StatusError } from "../hub/client"
import { clusterPath } from "./api"
import { type Cluster, retaint, type Taint } from "./cluster"

/**
 * Adds or removes a taint. The request replaces the whole list and carries the resourceVersion
 * that was read. After a conflict it is tried again, because the hub writes the status of
 * Clusters often.
 */
export async function setTaint(name: string, taint: Taint, on: boolean, tries = 5): Promise<void> {
  const { metadata, spec } = await get<Cluster & { metadata: { resourceVersion: string } }>(clusterPath(name))
  const { resourceVersion } = metadata
  await patch(clusterPath(name), { metadata: { resourceVersion }, spec: { taints: retaint(spec.taints, taint, on) } }).catch((e: StatusError) => {
    if (!e.conflict || tries === 1) throw e
    return setTaint(name, taint, on, tries - 1)
  })
}
