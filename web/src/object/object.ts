/** Pure: facts about objects of any kind. */
import type { Column, Obj } from "../hub/client"
import { isObject, type JsonObject, list, text } from "../hub/fields"
import { type Tone, toneOf as toneOfWord } from "../part/Mark"

/** The text for a kind that is not found in the fleet or, with cluster "", in the hub. */
export const missingKind = (cluster: string): "object.noKindMore" | "object.noKindHub" => (cluster ? "object.noKindMore" : "object.noKindHub")

export type Condition = { type: string; status: string; reason: string; message: string; since: string; tone: Tone }

/** Conditions that are bad when True, in all known kinds. */
const bad = /(Pressure|Failure|Failed|Unavailable|Degraded|Stalled|Problem|Conflict|Terminating|Suspended|Paused|FailureTarget|NotReady|Unhealthy|Error)$/

export function conditionsOf(object: Pick<Obj, "status">): Condition[] {
  return list(object.status ?? {}, "conditions").flatMap((c) => {
    const type = text(c, "type")
    const status = text(c, "status")
    const since = text(c, "lastTransitionTime") || text(c, "lastUpdateTime")
    return type ? [{ type, status, reason: text(c, "reason"), message: text(c, "message"), since, tone: toneOf(type, status) }] : []
  })
}

function toneOf(type: string, status: string): Tone {
  if (status === "Unknown") return "unknown"
  if (status !== "True" && status !== "False") return "plain"
  if (type.endsWith("Expiring")) return status === "True" ? "warn" : "good"
  if (bad.test(type)) return status === "True" ? "bad" : "good"
  return status === "True" ? "good" : "bad"
}

/** The condition that summarizes an object, if it has one. */
export function summary(object: Obj): Condition | undefined {
  const all = conditionsOf(object)
  for (const type of ["Ready", "Available", "Healthy", "Established", "Complete", "Synced"]) {
    const found = all.find((c) => c.type === type)
    if (found) return found
  }
  return undefined
}

/** The row of an object in a table of the API. */
export type Printed = { columns: Column[]; cells: unknown[] }
export type State = { word: string; message: string; tone: Tone }

/**
 * stateOf is the state of an object in one word: its summary condition, else the status that
 * kubectl prints, else its phase. For Pods the printed status comes first: their Ready condition
 * is absent until they are scheduled, and False after they completed.
 */
export function stateOf(object: Obj, printed?: Printed): State | undefined {
  const sum = summary(object)
  const said: State | undefined = sum && {
    word: sum.status === "True" ? sum.type : `${sum.type}: ${sum.reason || sum.status}`,
    message: sum.message,
    tone: sum.tone,
  }
  const isPod = object.kind === "Pod" && object.apiVersion === "v1"
  if (said && !isPod) return said
  const status = object.status ?? {}
  const word = cellOf(printed, ["Status", "Phase"]) || text(status, "reason") || text(status, "phase") || (isPod ? "Pending" : "")
  if (!word || (said && word === "Running")) return said
  const unscheduled = conditionsOf(object).find((c) => isPod && c.type === "PodScheduled" && c.status === "False")
  return {
    word: unscheduled?.reason && word === "Pending" ? `${word}: ${unscheduled.reason}` : word,
    message: unscheduled?.message || text(status, "message"),
    tone: toneOfWord(word),
  }
}

function cellOf(printed: Printed | undefined, names: string[]): string {
  for (const name of names) {
    const cell = printed?.cells[printed.columns.findIndex((c) => c.name === name)]
    if (typeof cell === "string" && cell !== "<none>" && cell !== "<unknown>") return cell
  }
  return ""
}

/** The object without the annotations of the fleet API, as in its cluster. */
export function plain(object: Obj): Obj {
  const { annotations, ...metadata } = object.metadata
  const own = Object.entries(annotations ?? {}).filter(([key]) => !key.startsWith("fleet.orrery.dev/"))
  const resourceVersion = annotations?.["fleet.orrery.dev/resource-version"] ?? metadata.resourceVersion
  return {
    ...object,
    metadata: { ...metadata, resourceVersion, ...(own.length > 0 ? { annotations: Object.fromEntries(own) } : {}) },
  }
}

/** When the object's type was last current, if it is stale. See freshnessIn. */
export const staleSince = (object: Obj): string | undefined => object.metadata.annotations?.["fleet.orrery.dev/last-seen"]

export type Selector = { labels: string; fields?: string }

/** The selector of an object's pods: by its name, or by labels; undefined: it has no pods. */
export function podsOf(object: Obj): Selector | undefined {
  if (object.kind === "Pod" && object.apiVersion === "v1") return { labels: "", fields: `metadata.name=${object.metadata.name}` }
  const selector: unknown = object.spec?.selector
  if (object.kind === "Service" && isObject(selector) && Object.keys(selector).length > 0) return { labels: pairs(selector) }
  if (object.kind === "Job") return { labels: `batch.kubernetes.io/job-name=${object.metadata.name}` }
  if (!object.spec?.template?.spec?.containers || !isObject(selector)) return undefined
  const expressions = list(selector, "matchExpressions").map((e) => {
    const values = list(e, "values").join(",")
    const [key, operator] = [text(e, "key"), text(e, "operator")]
    if (operator === "Exists") return key
    return operator === "DoesNotExist" ? `!${key}` : `${key} ${operator.toLowerCase()} (${values})`
  })
  const labels = [isObject(selector.matchLabels) ? pairs(selector.matchLabels) : "", ...expressions].filter(Boolean).join(",")
  return labels ? { labels } : undefined
}

const pairs = (labels: JsonObject): string =>
  Object.entries(labels)
    .map(([key, value]) => `${key}=${String(value)}`)
    .join(",")

export type Container = {
  name: string
  image: string
  init: boolean
  /** The reason of its state or the state's name; "" if unknown. */
  state: string
  /** Whether it has no state because no kubelet has started it yet. */
  notStarted: boolean
  ready?: boolean
  restarts: number
  ports: string
  last: string
}

export function containersOf(pod: Obj): Container[] {
  const phase = text(pod.status ?? {}, "phase") || "Pending"
  const of = (specs: string, statuses: string, init: boolean) =>
    list(pod.spec ?? {}, specs).map((c) => {
      const s = list(pod.status ?? {}, statuses).find((status) => text(status, "name") === text(c, "name"))
      const state = isObject(s) && isObject(s.state) ? s.state : {}
      const [word = ""] = Object.keys(state)
      const reason = text(state, word, "reason")
      const last = text(s, "lastState", "terminated", "reason")
      const code = text(s, "lastState", "terminated", "exitCode")
      return {
        name: text(c, "name"),
        image: text(c, "image"),
        init,
        state: reason || word.replace(/^./, (letter) => letter.toUpperCase()),
        // A running Pod may get ephemeral containers. A Pod that its node refused has no statuses.
        notStarted: !isObject(s) && (phase === "Pending" || phase === "Failed" || (phase === "Running" && specs === "ephemeralContainers")),
        ready: isObject(s) ? s.ready === true : undefined,
        restarts: Number(text(s, "restartCount") || 0),
        ports: list(c, "ports")
          .map((p) => `${text(p, "containerPort")}/${text(p, "protocol") || "TCP"}`)
          .join(", "),
        last: last && `${last} (${code})`,
      }
    })
  return [
    ...of("initContainers", "initContainerStatuses", true),
    ...of("containers", "containerStatuses", false),
    ...of("ephemeralContainers", "ephemeralContainerStatuses", false),
  ]
}

/** Fields of a spec that fit in a line each: scalars and short lists. */
export function scalarsOf(value: unknown): [string, string][] {
  if (!isObject(value)) return []
  return Object.entries(value).flatMap(([key, v]): [string, string][] => {
    if (typeof v === "string" || typeof v === "number" || typeof v === "boolean") return [[key, String(v)]]
    if (Array.isArray(v) && v.length > 0 && v.length < 8 && v.every((e) => typeof e === "string" || typeof e === "number")) return [[key, v.join(", ")]]
    return []
  })
}

/** The number of bytes of a Secret's base64 value. */
export function bytesOf(base64: string): number {
  const length = base64.replace(/=+$/, "").length
  return Math.floor((length * 3) / 4)
}

/** A Secret's value as text; undefined: it is not UTF-8 text. */
export function decode(base64: string): string | undefined {
  try {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes)
  } catch {
    return undefined
  }
}
