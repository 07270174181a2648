import { type Answer, useGet } from "../hub/answer"
import { type List, mirrored, type Obj } from "../hub/client"
import type { Ref } from "../hub/link"
import { podsOf } from "../object/object"

/** The pods of an object. For an object of the hub, its pods in every cluster. */
export function usePods(of: Ref, object: Obj): Answer<List> {
  const selector = podsOf(object)
  const path = `${mirrored(of.cluster)}/api/v1/namespaces/${encodeURIComponent(of.namespace)}/pods`
  return useGet<List>(selector && path, { labelSelector: selector?.labels, fieldSelector: selector?.fields, limit: 500 }, 10_000)
}

/** The cluster of a pod. */
export const clusterOf = (pod: Obj, of: Ref): string => of.cluster || pod.metadata.annotations?.["fleet.orrery.dev/cluster"] || ""
