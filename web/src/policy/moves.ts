// What would become of what is placed if its policy placed it in another way: asked of the scheduler, object by object. Nothing is stored.

import { fleet, list, type Obj, post } from "../hub/client"
import { groupOf, ofRef } from "../hub/link"
import { type Rights, scopes, somewhere, where } from "../hub/rights"
import type { Review } from "../placement/explained"
import { append, group, kinds, list as listOf, type PolicyKind, put } from "./form"

/** How many replicas a cluster has and gets; true of kinds without, undefined where it is not. */
export interface Change {
  cluster: string
  from?: number | true
  to?: number | true
}

export interface Move {
  object: string
  /** Undefined: the scheduler is not, or cannot be, asked. */
  changes?: Change[]
  message?: string
}

type Target = { name: string; replicas?: number }
const targets = (binding: Obj): Target[] => binding.spec.clusters ?? []
export const clustersOf = (binding: Obj) => targets(binding).map((c) => c.name)
export const isIn = (binding: Obj, cluster: string) => clustersOf(binding).includes(cluster)

/** What differs by cluster. Of clusters that somebody may not see it is not known. */
export function changes(now: Target[], then: NonNullable<Review["status"]>): Change[] {
  const seen = (c: Target) => !then.hidden || then.clusters?.some((other) => other.name === c.name)
  const counts = (all: Target[]) => new Map(all.map((c) => [c.name, c.replicas ?? (true as const)]))
  const [before, after] = [counts(now.filter(seen)), counts(then.clusters?.filter((c) => c.placed) ?? [])]
  return [...new Set([...before.keys(), ...after.keys()])]
    .sort()
    .map((cluster) => ({ cluster, from: before.get(cluster), to: after.get(cluster) }))
    .filter((c) => c.from !== c.to)
}

/** A placement as if a cluster were not there. */
export function without(placement: unknown, cluster: string): unknown {
  const terms = listOf(placement, ["clusterAffinities"])
  return terms.length > 0
    ? put(
        placement,
        ["clusterAffinities"],
        terms.map((term) => append(term, ["exclude"], cluster)),
      )
    : append(placement, ["clusterAffinity", "exclude"], cluster)
}

const most = 500

/** The bindings that somebody may list: of one namespace, or of all and of none. undefined: they may list none. */
export async function bindings(rights: Rights, namespace?: string, signal?: AbortSignal): Promise<{ items: Obj[]; more: boolean } | undefined> {
  const api = "/apis/work.orrery.dev/v1alpha2"
  const inside = where(rights, "list", "work.orrery.dev", "resourcebindings")
  const spaces = scopes(inside).flatMap((ns) => (namespace === undefined || ns === namespace ? [ns] : ns === "" ? [namespace] : []))
  const outside = namespace === undefined && somewhere(where(rights, "list", "work.orrery.dev", "clusterresourcebindings"))
  const paths = [...spaces.map((ns) => `${api}${ns ? `/namespaces/${ns}` : ""}/resourcebindings`), ...(outside ? [`${api}/clusterresourcebindings`] : [])]
  if (paths.length === 0) return undefined
  const all = await Promise.all(paths.map((path) => list(path, { limit: most }, signal)))
  return { items: all.flatMap((l) => l.items), more: all.some((l) => l.metadata.continue) }
}

export interface Question {
  namespace?: string
  has: (b: Obj) => boolean
  /** How it would be placed; undefined: that is not known. */
  placement: (b: Obj) => unknown
}

/** So many are asked about; of the others only the names are known. */
const asked = 20

/** Where what is placed would be; what stays as it is comes last. undefined: nobody may say what is placed. */
export async function moves(rights: Rights, q: Question, signal?: AbortSignal): Promise<Move[] | undefined> {
  const found = (await bindings(rights, q.namespace, signal))?.items.filter(q.has)
  const all = found?.map(async (b, i): Promise<Move> => {
    const { apiVersion, kind, name } = b.spec.resource
    const { namespace = "" } = b.metadata
    const object = `${kind} ${namespace ? `${namespace}/` : ""}${name}`
    const by = kinds[b.spec.policyRef.kind as PolicyKind]
    const may = where(rights, "create", group, by.plural)
    const placement = i < asked && (may.everywhere || (by.namespaced && may.namespaces.includes(namespace))) ? await q.placement(b) : undefined
    if (placement === undefined) return { object }
    const spec = { placement, of: ofRef({ group: groupOf(apiVersion), kind, namespace, name }), ...(by.namespaced ? { namespace } : {}) }
    const review = { apiVersion: "fleet.orrery.dev/v1alpha1", kind: "PlacementReview", spec }
    const { status } = await post<Review>(`${fleet}/placementreviews`, review, undefined, signal)
    if (!status || status.state === "Waiting") return { object, message: status?.message }
    return { object, changes: changes(targets(b), status), message: status.state === "Nowhere" ? status.message : undefined }
  })
  const quiet = (m: Move) => (m.changes?.length === 0 ? 1 : 0)
  return all && (await Promise.all(all)).sort((a, b) => quiet(a) - quiet(b) || a.object.localeCompare(b.object))
}

/** In how many places something stops: what is not known counts, too. */
export const leaving = (all: Move[]) => all.reduce((n, m) => n + (m.changes?.filter((c) => c.to === undefined).length ?? 1), 0)
