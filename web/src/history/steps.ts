// The history of an object as steps of a slider.

import type { Difference, Json } from "../hub/fields"

export interface Manager {
  manager: string
  operation?: string
  subresource?: string
  time?: string
}

/** Change is an ObjectChange of the fleet API. */
export interface Change {
  cluster: string
  namespace?: string
  name: string
  uid: string
  change: "Created" | "Seen" | "Updated" | "Deleted" | "Recreated"
  revision?: number
  time?: string
  by?: Manager[]
  cause?: string
  fields?: Difference[]
  object?: Json
}

/** Step is a moment at which an object changed. */
export interface Step {
  time: string
  changes: Change[]
  /** Whether the object exists after the step. */
  there: boolean
}

/**
 * stepsOf groups changes by their time, the oldest first. A change from before the history began
 * has no time and comes first.
 */
export function stepsOf(changes: Change[]): Step[] {
  const moments = new Map<string, Change[]>()
  for (const change of changes) {
    const time = change.time ?? ""
    const of = moments.get(time)
    if (of) of.push(change)
    else moments.set(time, [change])
  }
  const times = [...moments.keys()].sort((a, b) => (a === "" ? -1 : b === "" ? 1 : compare(a, b)))
  return times.map((time) => {
    const of = moments.get(time) as Change[]
    return { time, changes: of, there: of.some((change) => change.change !== "Deleted") }
  })
}

const compare = (a: string, b: string): number => Date.parse(a) - Date.parse(b) || (a < b ? -1 : a > b ? 1 : 0)

/**
 * moment returns the value of at= that reads the object as the step left it: the exact time of
 * the step. undefined: the step has no time.
 */
export function moment(step: Step | undefined): string | undefined {
  return step?.time ? step.time : undefined
}

/**
 * authors returns the managers that made a change, each once, with the subresource that they
 * wrote.
 */
export function authors(change: Change): string {
  const by = (change.by ?? []).map((m) => (m.subresource ? `${m.manager} (${m.subresource})` : m.manager))
  return [...new Set(by)].join(", ")
}
