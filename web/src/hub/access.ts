import { useEffect } from "react"
import { store } from "../part/store"
import { useAnswer } from "./answer"
import { own, post } from "./client"
import type { Kind } from "./kinds"

export type Act = {
  verb: string
  group?: string
  resource: string
  subresource?: string
  namespace?: string
  name?: string
  cluster?: string
}

const asked = new Map<string, { at: number; answer: Promise<boolean> }>()

/**
 * Asks the hub, or a cluster's API server, whether the user may do something. The API server
 * decides again at the request itself. Rejects if there is no answer.
 */
export function can(act: Act): Promise<boolean> {
  const key = JSON.stringify(act)
  const known = asked.get(key)
  if (known && Date.now() - known.at < 60_000) return known.answer
  const { cluster = "", ...resourceAttributes } = act
  const review = { apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec: { resourceAttributes } }
  const answer = post(`${own(cluster)}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews`, review).then((r) => r.status?.allowed === true)
  answer.catch(() => asked.delete(key))
  asked.set(key, { at: Date.now(), answer })
  return answer
}

export interface Unanswered {
  error: Error
  again: () => void
}

const unanswered = store<Unanswered[]>([])
/** The permissions of this page that could not be checked. */
export const useUnanswered = unanswered.use

/**
 * Whether the user may do something; undefined until known. If the check fails, the page shows
 * that and offers to try again.
 */
export function useCan(act: Act | undefined): boolean | undefined {
  const { data, error, reload } = useAnswer(act && (() => can(act)), JSON.stringify(act ?? ""))
  useEffect(() => {
    if (!error || data !== undefined) return
    const mine = { error, again: reload }
    unanswered.set([...unanswered.now(), mine])
    return () => unanswered.set(unanswered.now().filter((u) => u !== mine))
  }, [error, data, reload])
  return data
}

/**
 * The namespaces in which the user may list a kind; "" means all. Rejects if a check gets no
 * answer.
 */
export async function listable(kind: Pick<Kind, "group" | "resource" | "namespaced">, namespaces: string[]): Promise<string[]> {
  const may = (namespace?: string) => can({ verb: "list", group: kind.group, resource: kind.resource, namespace })
  if (await may()) return [""]
  const allowed = await Promise.all(kind.namespaced ? namespaces.map(may) : [])
  return namespaces.filter((_, i) => allowed[i])
}

/** The right to send requests to a cluster's own API server through the hub. */
export const reaching = (cluster: string, verb: "get" | "patch"): Act => ({
  verb,
  group: "fleet.orrery.dev",
  resource: "clusters",
  subresource: "proxy",
  name: cluster,
})
