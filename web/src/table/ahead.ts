import { lastKinds } from "../hub/kinds"
import { live } from "../hub/live"
import { question, readState } from "./state"

/** The rows that a table asks for first. */
export const firstRows = { offset: 0, limit: 120 }

/** Asks for the rows of the table that the address is of before it is drawn: of what the name of its kind meant last. */
export function askAhead(): void {
  const state = readState(location.search)
  if (location.pathname !== "/console/table" || state.hub) return
  const { kind, path, query } = question(state, lastKinds())
  if (kind && path) live.ahead(path, query, firstRows.offset, firstRows.limit)
}
