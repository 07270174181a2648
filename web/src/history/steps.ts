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
  /** Where on the slider it is, from 0, the oldest, to 1, now. */
  at: number
  /** Whether the object is there after it. */
  there: boolean
}

/** stepsOf makes steps of changes: the oldest first, those of one moment together. A change before there was a history has no time and begins the slider. */
export function stepsOf(changes: Change[], now: number): Step[] {
  const moments = new Map<string, Change[]>()
  for (const change of changes) {
    const time = change.time ?? ""
    const of = moments.get(time)
    if (of) of.push(change)
    else moments.set(time, [change])
  }
  const times = [...moments.keys()].sort((a, b) => (a === "" ? -1 : b === "" ? 1 : compare(a, b)))
  const first = Date.parse(times.find((time) => time !== "") ?? "")
  const span = Math.max(1, now - (Number.isNaN(first) ? now : first))
  return times.map((time) => {
    const of = moments.get(time) as Change[]
    const even = time === "" ? 0 : (Date.parse(time) - first) / span
    return { time, changes: of, at: Math.min(1, Math.max(0, even)), there: of.some((change) => change.change !== "Deleted") }
  })
}

const compare = (a: string, b: string): number => Date.parse(a) - Date.parse(b) || (a < b ? -1 : a > b ? 1 : 0)

/** nearest is the step at or before a place on the slider. */
export function nearest(steps: Step[], place: number): number {
  let found = 0
  steps.forEach((step, i) => {
    if (step.at <= place) found = i
  })
  return found
}

/** moment is what at= asks for to see what a step made: the hub's clock is told to the microsecond. */
export function moment(step: Step | undefined): string | undefined {
  return step?.time ? step.time : undefined
}

/** authors are who made a step, without those that only wrote status. */
export function authors(change: Change): string {
  const by = (change.by ?? []).map((m) => (m.subresource ? `${m.manager} (${m.subresource})` : m.manager))
  return [...new Set(by)].join(", ")
}
