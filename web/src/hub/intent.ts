// The request that makes an object as the user wants it. A server-side apply sends only the
// fields that the user changes and those that the console set before, none that others own. Only
// the removal of fields that others set needs an update, of exactly the state that was seen.

import { manager } from "./client"
import { at, diff, equal, format, get, isObject, type Json, type JsonObject, overlap, type Path, place } from "./fields"
import { elementsBy, into, isSet, managers, type Owned, ours, owned, ownsElement } from "./owners"

export interface Intent {
  /** Whether anything changes. */
  changes: boolean
  method: "apply" | "update"
  body: JsonObject
  /** The fields that the request changes or removes and that others own. */
  foreign: Foreign[]
}

/** Foreign is a field that the request changes and that others own. */
export interface Foreign {
  path: string
  steps: Path
  managers: string[]
  live?: Json
  wanted?: Json
}

/** The metadata that API servers write. Clients do not send it. */
const written = ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"]

/**
 * editable returns an object for editing: without the fields that API servers and controllers
 * write.
 */
export function editable(object: JsonObject): JsonObject {
  const { status: _, metadata, ...rest } = object
  if (!isObject(metadata)) return rest
  const kept = Object.entries(metadata).filter(([key]) => !written.includes(key))
  const annotations = isObject(metadata.annotations) ? Object.entries(metadata.annotations).filter(([key]) => key !== lastApplied) : []
  const shown = kept.filter(([key]) => key !== "annotations")
  if (annotations.length > 0) shown.push(["annotations", Object.fromEntries(annotations)])
  const { apiVersion, kind, ...body } = rest
  return { apiVersion, kind, metadata: Object.fromEntries(shown), ...body }
}

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

/** create returns the request that creates an object. */
export function create(wanted: JsonObject): Intent {
  return { changes: true, method: "apply", body: editable(wanted), foreign: [] }
}

/**
 * intent returns the request that turns the live object into wanted. wanted has the form that
 * editable returns.
 */
export function intent(live: JsonObject, wanted: JsonObject): Intent {
  const now = editable(live)
  const delta: Delta = { all: owned(live), changed: [], removed: [] }
  const sent = build(delta, [], now, wanted, delta.all, ours(live)) ?? {}
  const others = (path: Path) => managers(delta.all, path).filter((m) => m !== manager)
  const removed = delta.removed.filter((path) => others(path).length > 0 || managers(delta.all, path).length === 0)
  const foreign = [...delta.changed, ...delta.removed]
    .map((steps) => ({ path: format(steps), steps, managers: others(steps), live: get(now, ...steps), wanted: get(wanted, ...steps) }))
    .filter((f) => f.managers.length > 0 && f.live !== undefined)
  const changes = delta.changed.length + delta.removed.length > 0
  if (removed.length === 0) return { changes, method: "apply", body: identified(live, isObject(sent) ? sent : {}), foreign }
  return { changes, method: "update", body: updated(live, wanted), foreign }
}

function identified(live: JsonObject, body: JsonObject): JsonObject {
  const { name, namespace } = live.metadata as JsonObject
  const metadata = { ...(isObject(body.metadata) ? body.metadata : {}), name, ...(namespace ? { namespace } : {}) }
  return { ...body, apiVersion: live.apiVersion, kind: live.kind, metadata }
}

function updated(live: JsonObject, wanted: JsonObject): JsonObject {
  const was = live.metadata as JsonObject
  const metadata = { ...(wanted.metadata as JsonObject) }
  for (const key of written) if (key in was && key !== "managedFields") metadata[key] = was[key]
  const applied = get(was, "annotations", lastApplied)
  if (applied !== undefined) metadata.annotations = { ...(isObject(metadata.annotations) ? metadata.annotations : {}), [lastApplied]: applied }
  return { ...wanted, ...("status" in live ? { status: live.status } : {}), metadata }
}

/** The fields that differ, and the owners of all live fields. */
interface Delta {
  all: Owned
  changed: Path[]
  removed: Path[]
}

// build returns the value to send for a field. A field that has no parts in managedFields is sent
// whole. That is right for atomic lists and maps, and harmless for others, because unchanged
// parts equal the live ones.
function build(delta: Delta, path: Path, live: Json | undefined, wanted: Json | undefined, all: Owned | undefined, own: Owned | undefined): Json | undefined {
  if (wanted === undefined) {
    if (live !== undefined) delta.removed.push(path)
    return undefined
  }
  if (isObject(live) && isObject(wanted) && (path.length === 0 || (all?.below.size ?? 0) > 0)) {
    const out: [string, Json][] = []
    for (const key of new Set([...Object.keys(live), ...Object.keys(wanted)])) {
      const value = build(delta, [...path, key], at(live, key), at(wanted, key), into(all, key), into(own, key))
      if (value !== undefined) out.push([key, value])
    }
    return out.length > 0 || own?.managers.size ? Object.fromEntries(out) : undefined
  }
  if (Array.isArray(live) && Array.isArray(wanted)) {
    const by = elementsBy(all)
    const elements = by && buildElements(delta, path, live, wanted, by, all, own)
    if (elements) return elements.length > 0 ? elements : undefined
    if (isSet(all)) return buildSet(delta, path, live, wanted, all, own)
  }
  if (equal(live, wanted)) return own ? wanted : undefined
  delta.changed.push(path)
  return wanted
}

type Names = JsonObject

function buildElements(delta: Delta, path: Path, live: Json[], wanted: Json[], by: string[], all?: Owned, own?: Owned): Json[] | undefined {
  const [was, is] = [live.map((e) => namesOf(e, by)), wanted.map((e) => namesOf(e, by, live))]
  // The API server reports the error.
  if ([...was, ...is].some((names) => names === undefined)) return undefined
  const out: Json[] = []
  is.forEach((names, i) => {
    const old = place(live, names as Names)
    const value = build(delta, [...path, names as Names], live[old], wanted[i], into(all, names as Names), into(own, names as Names))
    if (isObject(value)) out.push({ ...value, ...names })
  })
  was.forEach((names) => {
    if (!is.some((other) => equal(other, names))) delta.removed.push([...path, names as Names])
  })
  return out
}

// A field of an element's key may be left to its default, such as the protocol of a port. Then
// the live element that equals it in the other fields is meant.
function namesOf(element: Json, by: string[], among: Json[] = []): Names | undefined {
  if (!isObject(element)) return undefined
  const given = by.filter((name) => at(element, name) !== undefined).map((name) => [name, element[name]] as const)
  if (given.length === 0) return undefined
  const names = Object.fromEntries(given)
  if (given.length === by.length) return names
  const like = among[place(among, names)]
  return isObject(like) ? Object.fromEntries(by.filter((name) => at(like, name) !== undefined).map((name) => [name, like[name]])) : names
}

function buildSet(delta: Delta, path: Path, live: Json[], wanted: Json[], all?: Owned, own?: Owned): Json[] | undefined {
  const added = wanted.filter((element) => !live.some((old) => equal(old, element)))
  const gone = live.filter((old) => !wanted.some((element) => equal(old, element)))
  if (added.length > 0) delta.changed.push(path)
  if (gone.some((element) => !ownsElement(own, element) || (all?.below.get(`v:${JSON.stringify(element)}`)?.managers.size ?? 0) > 1)) delta.removed.push(path)
  else if (gone.length > 0) delta.changed.push(path)
  const out = wanted.filter((element) => added.includes(element) || ownsElement(own, element))
  return out.length > 0 ? out : undefined
}

/** Conflict is a field whose wanted value differs from the live one, with its owners. */
export interface Conflict extends Foreign {
  /** The value when the editing began, if it was another. */
  base?: Json
  meanwhile: boolean
}

/**
 * conflicts returns the fields for which the user must choose: fields that others own, marked if
 * they changed meanwhile.
 */
export function conflicts(of: Intent, base: JsonObject, now: JsonObject): Conflict[] {
  const meanwhile = diff(base, now, true)
  return of.foreign.map((f) => ({
    ...f,
    base: get(base, ...f.steps),
    meanwhile: meanwhile.some((d) => overlap(d.steps ?? [], f.steps)),
  }))
}
