// The past of an object as steps of a slider.

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
  /** Whether the object is there after it. */
  there: boolean
}

/** stepsOf makes steps of changes: the oldest first, those of one moment together. A change before there was a history has no time and begins the slider. */
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

/** moment is what at= asks for to see what a step made: the hub's clock is told to the microsecond. */
export function moment(step: Step | undefined): string | undefined {
  return step?.time ? step.time : undefined
}

/** authors are who made a step, without those that only wrote status. */
export function authors(change: Change): string {
  const by = (change.by ?? []).map((m) => (m.subresource ? `${m.manager} (${m.subresource})` : m.manager))
  return [...new Set(by)].join(", ")
}
