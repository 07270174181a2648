// An Operation of the hub, prepared for the page: its hosts and steps, and the actions on it.

import type { Tone } from "../part/Mark"

export type StepState = "Pending" | "Running" | "Unchanged" | "Changed" | "Reverted" | "Failed"
export type Phase = "Pending" | "Running" | "Paused" | "Succeeded" | "Failed" | "Canceled"

export interface Step {
  host: string
  id: string
  state: StepState
  attempt?: number
  started?: string
  finished?: string
  message?: string
}

export interface HostRun {
  name: string
  stage?: string
  state: StepState
  done?: number
  total?: number
  message?: string
}

/** The same changes on several hosts, one per line, which begins with + ~ ! - or *. */
export interface Planned {
  hosts: string[]
  changes?: string[]
  left?: number
}

export interface Operation {
  metadata: { name: string; creationTimestamp?: string; uid?: string; deletionTimestamp?: string; annotations?: Record<string, string> }
  spec: {
    cluster: string
    action: string
    paused?: boolean
    canceled?: boolean
    planHash?: string
    addNode?: { hosts?: string[] }
    deleteNode?: { hosts?: string[]; unreachable?: string }
  }
  status?: {
    phase?: Phase
    message?: string
    planHash?: string
    plan?: Planned[]
    attempt?: number
    started?: string
    finished?: string
    estimate?: string
    stepsDone?: number
    stepsTotal?: number
    hosts?: HostRun[]
    steps?: Step[]
  }
}

export interface OperationSlice {
  host: string
  part?: number
  steps?: Step[]
}

export interface HostSteps extends HostRun {
  steps: Step[]
}

/**
 * The hosts with all of their steps. An Operation keeps the last hundred steps; its slices keep
 * all but those of the last seconds. If both have a step, the later attempt or start wins, then
 * the one that ended.
 */
export function hosts(op: Operation, slices: OperationSlice[]): HostSteps[] {
  const kept = new Map<string, Map<string, Step>>()
  const newer = (a: Step, b: Step) =>
    (a.attempt ?? 0) - (b.attempt ?? 0) || (a.started ?? "").localeCompare(b.started ?? "") || (a.finished ?? "").localeCompare(b.finished ?? "")
  for (const step of [...slices.flatMap((s) => s.steps ?? []), ...(op.status?.steps ?? [])]) {
    const of = kept.get(step.host) ?? new Map<string, Step>()
    kept.set(step.host, of)
    const known = of.get(step.id)
    if (!known || newer(step, known) >= 0) of.set(step.id, step)
  }
  const runs = new Map((op.status?.hosts ?? []).map((h) => [h.name, h]))
  for (const name of kept.keys()) if (!runs.has(name)) runs.set(name, { name, state: "Pending" })
  return [...runs.values()].map((h) => ({
    ...h,
    steps: [...(kept.get(h.name)?.values() ?? [])].sort((a, b) => (a.started ?? "").localeCompare(b.started ?? "")),
  }))
}

/** The actions on an operation: changes to its spec or, for retry, its deletion. */
export type Act = "pause" | "resume" | "cancel" | "retry"

export function acts(op: Operation): Act[] {
  const phase = op.status?.phase ?? "Pending"
  if (op.metadata.deletionTimestamp || op.spec.canceled || phase === "Succeeded" || phase === "Canceled") return []
  if (phase === "Failed") return triedAgain(op) ? ["retry", "cancel"] : []
  return [op.spec.paused ? "resume" : "pause", "cancel"]
}

/**
 * Whether the hub retries the operation: one that it created for a changed spec, a renewal, or
 * the removal of hosts. Other operations that failed have ended.
 */
const triedAgain = ({ metadata, spec }: Operation) =>
  metadata.annotations?.["lifecycle.orrery.dev/spec-hash"] !== undefined || ["RenewCertificates", "Delete"].includes(spec.action)

/**
 * The spec of an action. retry has none: the hub tries a failed operation again as soon as it is
 * deleted.
 */
export function patch(act: Exclude<Act, "retry">): { paused?: boolean; canceled?: boolean } {
  return act === "cancel" ? { canceled: true } : { paused: act === "pause" }
}

/** The tone of a line of a plan: added, removed or changed. */
export function toneOfChange(line: string): Tone {
  return ({ "+": "good", "-": "bad", "~": "warn", "!": "warn" } as const)[line[0] ?? ""] ?? "plain"
}

/** The progress of an operation, 0 to 1; undefined before its plan exists. */
export function progress(op: Operation): number | undefined {
  const { stepsDone = 0, stepsTotal = 0, phase } = op.status ?? {}
  if (phase === "Succeeded") return 1
  return stepsTotal ? Math.min(1, stepsDone / stepsTotal) : undefined
}

/** The duration in whole seconds, until now if it is not finished. */
export function seconds(started: string | undefined, finished: string | undefined, now: number): number | undefined {
  if (!started) return undefined
  return Math.max(0, Math.round(((finished ? Date.parse(finished) : now) - Date.parse(started)) / 1000))
}

/**
 * The difference between the hosts in a spec and those that were applied, shown before there is a
 * plan.
 */
export interface HostDiff {
  name: string
  change: "added" | "removed" | "kept"
  roles: string[]
}

/** The names in a range such as node[1:3]. */
export function expand(names: string): string[] {
  const m = /^(.*)\[(\d+):(\d+)\](.*)$/.exec(names)
  if (!m) return [names]
  const [, before, from, to, after] = m as unknown as [string, string, string, string, string]
  const width = from.startsWith("0") ? from.length : 0
  const all: string[] = []
  for (let i = Number(from); i <= Number(to) && all.length < 5000; i++) all.push(`${before}${String(i).padStart(width, "0")}${after}`)
  return all
}

export function hostDiff(
  spec: { hosts?: { name: string }[]; roleGroups?: Record<string, string[]> } | undefined,
  now: { hostname: string; roles?: string[] }[] | undefined,
): HostDiff[] {
  const roles = new Map<string, string[]>()
  for (const [role, groups] of Object.entries(spec?.roleGroups ?? {})) {
    for (const name of groups.flatMap(expand)) roles.set(name, [...(roles.get(name) ?? []), role])
  }
  const there = new Map((now ?? []).map((n) => [n.hostname, n]))
  const wanted = (spec?.hosts ?? []).map((h): HostDiff => ({ name: h.name, change: there.has(h.name) ? "kept" : "added", roles: roles.get(h.name) ?? [] }))
  const names = new Set(wanted.map((h) => h.name))
  return [...wanted, ...(now ?? []).filter((n) => !names.has(n.hostname)).map((n): HostDiff => ({ name: n.hostname, change: "removed", roles: n.roles ?? [] }))]
}
