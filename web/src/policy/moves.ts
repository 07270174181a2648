// What a change moves that nobody made yet: told by the hub, which stores nothing of it.

import { fleet, post, StatusError } from "../hub/client"
import { many } from "../table/selection"

/** What a cluster has of an object: kinds without replicas have none. */
type Share = { replicas?: number }

export interface Move {
  of: { kind: string; namespace?: string; name: string }
  policy?: { name: string }
  clusters?: { name: string; from?: Share; to?: Share }[]
  /** How many clusters somebody may not see. */
  hidden?: number
  /** No cluster is left for it, and nothing is waited for. */
  atOnce?: boolean
  /** Not before it changes next. */
  later?: boolean
  message?: string
}

export interface Moves {
  looked: number
  moving: number
  hidden?: number
  /** Whether this is all that there is. */
  exact: boolean
  /** The first of those that move; those that lose something come first. */
  items?: Move[]
}

/** A policy or a cluster as it would be. */
export interface Change {
  policy?: { namespace?: string; name: string; spec?: object }
  cluster?: { name: string; leaves?: true; labels?: object }
}

export async function moves(change: Change, signal?: AbortSignal): Promise<Moves> {
  const review = { apiVersion: "fleet.orrery.dev/v1alpha1", kind: "PlacementReview", spec: { moves: change } }
  const { status } = await post<{ status: { moves?: Moves; message?: string } }>(`${fleet}/placementreviews`, review, undefined, signal)
  if (!status.moves) throw new StatusError({ code: 503, reason: "ServiceUnavailable", message: status.message ?? "" })
  return status.moves
}

const loses = (m: Move) => (m.clusters?.filter((c) => !c.to).length ?? 0) + (m.hidden ?? 0)

/** In how many places something stops: what is not told counts, too, unless all that loses something was told before. */
export function leaving({ items = [], moving, hidden = 0 }: Moves): number {
  const last = items.at(-1)
  const untold = last && loses(last) === 0 ? hidden : moving - items.length
  return items.reduce((n, m) => n + loses(m), untold)
}

/** Whether so much moves that somebody has to be sure: what nobody can tell is, and what goes everywhere at once. */
export const much = (of: Moves) => !of.exact || leaving(of) > many || of.items?.some((m) => m.atOnce) === true
