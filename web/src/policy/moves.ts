// What would become of what is placed if its policy placed it in another way: asked of the scheduler, object by object. Nothing is stored.

import { can } from "../hub/access"
import { fleet, list, type Obj, post, StatusError } from "../hub/client"
import { hubKind } from "../hub/kinds"
import { groupOf, ofRef, type Ref } from "../hub/link"
import { askRights, type Rights, scopes, somewhere, where } from "../hub/rights"
import type { Review } from "../placement/explained"
import { many } from "../table/selection"
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
  /** No cluster is left for it, and nothing is waited for. */
  atOnce?: boolean
}

type Target = { name: string; replicas?: number }
const targets = (binding: Obj): Target[] => binding.spec.clusters ?? []
export const clustersOf = (binding: Obj) => targets(binding).map((c) => c.name)

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

const page = 500

/** What a list has, page by page: all of it, or at least so many if there are more. */
async function read(path: string, most: number, signal?: AbortSignal) {
  const items: Obj[] = []
  let from: string | undefined
  do {
    const some = await list(path, { limit: page, continue: from }, signal)
    items.push(...some.items)
    from = some.metadata.continue
  } while (from && items.length < most)
  return { items, more: from !== undefined && from !== "" }
}

/** The bindings that somebody may list, of one namespace or of all and of none, and whether there are others. undefined: they may list none. */
export async function bindings(
  namespace?: string,
  signal?: AbortSignal,
  most = Number.POSITIVE_INFINITY,
): Promise<{ items: Obj[]; more: boolean; whole: boolean } | undefined> {
  const api = "/apis/work.orrery.dev/v1alpha2"
  const rights = await askRights()
  const inside = where(rights, "list", "work.orrery.dev", "resourcebindings")
  const outside = where(rights, "list", "work.orrery.dev", "clusterresourcebindings")
  const spaces = scopes(inside).flatMap((ns) => (namespace === undefined || ns === namespace ? [ns] : ns === "" ? [namespace] : []))
  const paths = spaces.map((ns) => `${api}${ns ? `/namespaces/${ns}` : ""}/resourcebindings`)
  if (namespace === undefined && somewhere(outside)) paths.push(`${api}/clusterresourcebindings`)
  if (paths.length === 0) return undefined
  const all = await Promise.all(paths.map((path) => read(path, most, signal)))
  const more = all.some((l) => l.more)
  return { items: all.flatMap((l) => l.items), more, whole: !more && (namespace !== undefined || (inside.everywhere && outside.everywhere)) }
}

export interface Question {
  namespace?: string
  has: (b: Obj) => boolean
  /** How it would be placed; undefined: that is not known. */
  placement: (b: Obj, rights: Rights) => unknown
}

export interface Moves {
  moves: Move[]
  /** What goes along with others, and is not asked about: no policy claims it. */
  following: number
  /** Whether this is all that there is, and not only what somebody may list. */
  whole: boolean
}

/** So many are asked about; of the others only the names are known. */
const asked = 20

const follows = (b: Obj) => clustersOf(b).length > 0 && b.spec.clusters.every((c: { attached?: boolean }) => c.attached)

/** Where what is placed would be; what stays as it is comes last. undefined: nobody may say what is placed. */
export async function moves(q: Question, signal?: AbortSignal): Promise<Moves | undefined> {
  const known = await bindings(q.namespace, signal)
  if (!known) return undefined
  const rights = await askRights()
  const found = known.items.filter(q.has)
  const claimed = found.filter((b) => !follows(b))
  const all = claimed.map(async (b, i): Promise<Move> => {
    const { apiVersion, kind, name } = b.spec.resource
    const { namespace = "" } = b.metadata
    const object = `${kind} ${namespace ? `${namespace}/` : ""}${name}`
    try {
      return { object, ...(i < asked ? await move(b, { group: groupOf(apiVersion), kind, namespace, name }, q, rights, signal) : {}) }
    } catch (e) {
      // One that is gone, or that nobody can say anything of, does not hide the others.
      if (e instanceof StatusError) return { object, message: e.message }
      throw e
    }
  })
  const quiet = (m: Move) => (m.changes?.length === 0 ? 1 : 0)
  const sorted = (await Promise.all(all)).sort((a, b) => quiet(a) - quiet(b) || a.object.localeCompare(b.object))
  return { moves: sorted, following: found.length - claimed.length, whole: known.whole }
}

/** Asks only what the user may ask: to make such a policy, and to read the object. */
async function move(b: Obj, object: Omit<Ref, "cluster">, q: Question, rights: Rights, signal?: AbortSignal): Promise<Omit<Move, "object">> {
  const { namespace, name } = object
  const by = kinds[b.spec.policyRef.kind as PolicyKind]
  const may = where(rights, "create", group, by.plural)
  if (!may.everywhere && !(by.namespaced && may.namespaces.includes(namespace))) return {}
  const placement = await q.placement(b, rights)
  if (placement === undefined) return {}
  const of = ofRef(object)
  const kind = await hubKind(of.slice(0, of.indexOf("/")))
  if (!kind || !(await can({ verb: "get", group: kind.group, resource: kind.resource, namespace, name }))) return {}
  const spec = { placement, of, ...(by.namespaced ? { namespace } : {}) }
  const review = { apiVersion: "fleet.orrery.dev/v1alpha1", kind: "PlacementReview", spec }
  const { status } = await post<Review>(`${fleet}/placementreviews`, review, undefined, signal)
  return status ? answered(targets(b), status) : {}
}

/** What an answer says of an object that is placed now. */
export function answered(now: Target[], then: NonNullable<Review["status"]>): Omit<Move, "object"> {
  if (then.state === "Waiting") return { message: then.message }
  const all = changes(now, then)
  if (then.state === "Placed") return { changes: all }
  return { changes: all, message: then.message, atOnce: all.length > 0 && !then.clusters?.some((c) => c.leaves) }
}

/** In how many places something stops: what is not known counts, too. */
export const leaving = (all: Move[]) => all.reduce((n, m) => n + (m.changes?.filter((c) => c.to === undefined).length ?? 1), 0)

/** Whether so much moves that somebody has to be sure: what nobody can tell is, and what goes everywhere at once. */
export const much = (of: Moves | undefined) => !of?.whole || leaving(of.moves) > many || of.moves.some((m) => m.atOnce)
