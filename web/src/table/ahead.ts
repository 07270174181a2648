import { lastKinds } from "../hub/kinds"
import { live } from "../hub/live"
import { question, readState } from "./state"

/** The rows that a table requests first. */
export const firstRows = { offset: 0, limit: 120 }

/**
 * Requests the rows of the table in the address before the table is rendered, for the kind that
 * this tab last knew by that name.
 */
export function askAhead(): void {
  const state = readState(location.search)
  if (location.pathname !== "/console/table" || state.hub) return
  const { kind, path, query } = question(state, lastKinds())
  if (kind && path) live.ahead(path, query, firstRows.offset, firstRows.limit)
}
