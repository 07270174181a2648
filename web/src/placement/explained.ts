import type { Difference } from "../hub/fields"

// The fleet API's answers about placements: placements, works and placementreviews.

export interface ExplainedObject {
  apiVersion: string
  kind: string
  namespace?: string
  name: string
  generation?: number
}

export interface ExplainedPolicy {
  kind: string
  namespace?: string
  name: string
  generation?: number
  clusters?: string[]
  reason?: string
}

export interface Verdict {
  reason: string
  message: string
}

export interface Result {
  applied: boolean
  reason?: string
  message?: string
  current: boolean
  time?: string
}

export interface ExplainedCluster {
  name: string
  placed: boolean
  replicas?: number
  attached?: boolean
  leaves?: boolean
  leaving?: number
  verdicts?: Verdict[]
  result?: Result
}

export interface Wait {
  for: string
  message: string
  clusters?: string[]
}

export interface Explanation {
  of: ExplainedObject
  state: "Placed" | "Waiting" | "Nowhere" | "Unclaimed" | "Reserved" | "Unknown"
  message: string
  generation?: number
  current: boolean
  policy?: ExplainedPolicy
  placedBy?: ExplainedPolicy
  lost?: ExplainedPolicy[]
  near?: ExplainedPolicy[]
  decision?: {
    time: string
    generation?: number
    policyGeneration?: number
    current: boolean
    reason: string
    message?: string
    replicas?: number
    divided?: boolean
  }
  clusters?: ExplainedCluster[]
  hidden?: number
  waits?: Wait[]
  overrides?: ExplainedPolicy[]
  follow?: ExplainedObject[]
  followMore?: number
  follows?: ExplainedObject[]
}

export interface Work {
  cluster: string
  placed: boolean
  state: "Present" | "Absent" | "Unknown"
  message?: string
  lastSeen?: string
  result?: Result
  wanted?: number
  asked?: number
  ready?: number
  images?: { container: string; wanted?: string; live?: string }[]
  health: "Healthy" | "Unhealthy" | "Unknown"
  cause?: string
  overrides?: ExplainedPolicy[]
  drift?: Difference[]
  driftUnknown?: string
  rendered?: unknown
  live?: unknown
}

export interface WorkList {
  of: ExplainedObject
  message?: string
  items?: Work[]
  hidden?: number
}

export interface Review {
  spec: { placement: unknown; namespace?: string; name?: string; of?: string; replicas?: number }
  status?: {
    time: string
    state: "Placed" | "Nowhere" | "Waiting"
    reason?: string
    message?: string
    replicas?: number
    divided?: boolean
    clusters?: ExplainedCluster[]
    hidden?: number
  }
}
