// Preview of the moves that a change would cause. The hub computes it and stores nothing.

import { fleet, post, StatusError } from "../hub/client"
import { many } from "../table/selection"

/** A cluster's share of an object; kinds without replicas have no number. */
type Share = { replicas?: number }

export interface Move {
  of: { kind: string; namespace?: string; name: string }
  policy?: { name: string }
  clusters?: { name: string; from?: Share; to?: Share }[]
  /** The number of clusters that the user may not see. */
  hidden?: number
  /** No cluster is left for the object, and its removal waits for nothing. */
  atOnce?: boolean
  /** The object moves only when it changes next. */
  later?: boolean
  message?: string
}

export interface Moves {
  looked: number
  moving: number
  hidden?: number
  /** Whether all moves are known. */
  exact: boolean
  /** The first objects that move; those that leave a cluster come first. */
  items?: Move[]
}

/** A policy or a cluster after the change. */
export interface Change {
  policy?: { namespace?: string; name: string; spec?: object }
  cluster?: { name: string; leaves?: true; labels?: object; taints?: object[] }
}

export async function moves(change: Change, signal?: AbortSignal): Promise<Moves> {
  const review = { apiVersion: "fleet.orrery.dev/v1alpha1", kind: "PlacementReview", spec: { moves: change } }
  const { status } = await post<{ status: { moves?: Moves; message?: string } }>(`${fleet}/placementreviews`, review, undefined, signal)
  if (!status.moves) throw new StatusError({ code: 503, reason: "ServiceUnavailable", message: status.message ?? "" })
  return status.moves
}

const loses = (m: Move) => (m.clusters?.filter((c) => !c.to).length ?? 0) + (m.hidden ?? 0)

/**
 * The number of places that objects leave. Unlisted moves count as one each; if the listed ones
 * already end with moves that leave no cluster, only hidden ones count.
 */
export function leaving({ items = [], moving, hidden = 0 }: Moves): number {
  const last = items.at(-1)
  const unlisted = last && loses(last) === 0 ? hidden : moving - items.length
  return items.reduce((n, m) => n + loses(m), unlisted)
}

/**
 * Whether the user must confirm the moves: if not all are known, if objects leave many places, or
 * if one leaves its last cluster at once.
 */
export const much = (of: Moves) => !of.exact || leaving(of) > many || of.items?.some((m) => m.atOnce) === true
