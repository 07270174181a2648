// What is sent to have an object as somebody wants it: by server-side apply the fields that they change and those that the console set before, and nothing
// that is others'. Only what an apply cannot do, to remove what others set, is done by an update of exactly the state that was seen.

import { manager } from "./client"
import { at, diff, equal, format, get, isObject, type Json, type JsonObject, overlap, type Path, place } from "./fields"
import { elementsBy, into, isSet, managers, type Owned, ours, owned, ownsElement } from "./owners"

export interface Intent {
  /** Whether anything is to change. */
  changes: boolean
  method: "apply" | "update"
  body: JsonObject
  /** The fields that it changes or removes and others own. */
  foreign: Foreign[]
}

/** Foreign is a field that is changed and that others own. */
export interface Foreign {
  path: string
  steps: Path
  managers: string[]
  live?: Json
  wanted?: Json
}

/** The metadata that API servers write, which nobody sends. */
const written = ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"]

/** editable is an object as people edit it: without what API servers and controllers write. */
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

/** create is the intent to have an object that is not there. */
export function create(wanted: JsonObject): Intent {
  return { changes: true, method: "apply", body: editable(wanted), foreign: [] }
}

/** intent is what is sent to have the live object as wanted, which is of the form that editable gives it. */
export function intent(live: JsonObject, wanted: JsonObject): Intent {
  const now = editable(live)
  const walk: Walk = { all: owned(live), changed: [], removed: [] }
  const sent = build(walk, [], now, wanted, walk.all, ours(live)) ?? {}
  const others = (path: Path) => managers(walk.all, path).filter((m) => m !== manager)
  const removed = walk.removed.filter((path) => others(path).length > 0 || managers(walk.all, path).length === 0)
  const foreign = [...walk.changed, ...walk.removed]
    .map((steps) => ({ path: format(steps), steps, managers: others(steps), live: get(now, ...steps), wanted: get(wanted, ...steps) }))
    .filter((f) => f.managers.length > 0 && f.live !== undefined)
  const changes = walk.changed.length + walk.removed.length > 0
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

interface Walk {
  all: Owned
  changed: Path[]
  removed: Path[]
}

// build returns what is sent of a field. Where managedFields do not say that it has parts, it is sent whole: that is right for lists and maps that are owned as
// a whole, and harmless for others, as what is not changed is equal to what is there.
function build(walk: Walk, path: Path, live: Json | undefined, wanted: Json | undefined, all: Owned | undefined, own: Owned | undefined): Json | undefined {
  if (wanted === undefined) {
    if (live !== undefined) walk.removed.push(path)
    return undefined
  }
  if (isObject(live) && isObject(wanted) && (path.length === 0 || (all?.below.size ?? 0) > 0)) {
    const out: [string, Json][] = []
    for (const key of new Set([...Object.keys(live), ...Object.keys(wanted)])) {
      const value = build(walk, [...path, key], at(live, key), at(wanted, key), into(all, key), into(own, key))
      if (value !== undefined) out.push([key, value])
    }
    return out.length > 0 || own?.managers.size ? Object.fromEntries(out) : undefined
  }
  if (Array.isArray(live) && Array.isArray(wanted)) {
    const by = elementsBy(all)
    const elements = by && buildElements(walk, path, live, wanted, by, all, own)
    if (elements) return elements.length > 0 ? elements : undefined
    if (isSet(all)) return buildSet(walk, path, live, wanted, all, own)
  }
  if (equal(live, wanted)) return own ? wanted : undefined
  walk.changed.push(path)
  return wanted
}

type Names = JsonObject

function buildElements(walk: Walk, path: Path, live: Json[], wanted: Json[], by: string[], all?: Owned, own?: Owned): Json[] | undefined {
  const [was, is] = [live.map((e) => namesOf(e, by)), wanted.map((e) => namesOf(e, by, live))]
  if ([...was, ...is].some((names) => names === undefined)) return undefined // the API server says what is wrong with it
  const out: Json[] = []
  is.forEach((names, i) => {
    const old = place(live, names as Names)
    const value = build(walk, [...path, names as Names], live[old], wanted[i], into(all, names as Names), into(own, names as Names))
    if (isObject(value)) out.push({ ...value, ...names })
  })
  was.forEach((names) => {
    if (!is.some((other) => equal(other, names))) walk.removed.push([...path, names as Names])
  })
  return out
}

// A field that names an element may be left to its default, as the protocol of ports is: then the element that agrees in the others is meant.
function namesOf(element: Json, by: string[], among: Json[] = []): Names | undefined {
  if (!isObject(element)) return undefined
  const given = by.filter((name) => at(element, name) !== undefined).map((name) => [name, element[name]] as const)
  if (given.length === 0) return undefined
  const names = Object.fromEntries(given)
  if (given.length === by.length) return names
  const like = among[place(among, names)]
  return isObject(like) ? Object.fromEntries(by.filter((name) => at(like, name) !== undefined).map((name) => [name, like[name]])) : names
}

function buildSet(walk: Walk, path: Path, live: Json[], wanted: Json[], all?: Owned, own?: Owned): Json[] | undefined {
  const added = wanted.filter((element) => !live.some((old) => equal(old, element)))
  const gone = live.filter((old) => !wanted.some((element) => equal(old, element)))
  if (added.length > 0) walk.changed.push(path)
  if (gone.some((element) => !ownsElement(own, element) || (all?.below.get(`v:${JSON.stringify(element)}`)?.managers.size ?? 0) > 1)) walk.removed.push(path)
  else if (gone.length > 0) walk.changed.push(path)
  const out = wanted.filter((element) => added.includes(element) || ownsElement(own, element))
  return out.length > 0 ? out : undefined
}

/** Conflict is a field that is wanted other than it is, and whose it is. */
export interface Conflict extends Foreign {
  /** What it was when the editing began, if it was another. */
  base?: Json
  meanwhile: boolean
}

/** conflicts are all fields that need a choice: those that others own, by managedFields and by what the API server says, and those that changed meanwhile. */
export function conflicts(of: Intent, base: JsonObject, now: JsonObject): Conflict[] {
  const meanwhile = diff(base, now, true)
  return of.foreign.map((f) => ({
    ...f,
    base: get(base, ...f.steps),
    meanwhile: meanwhile.some((d) => overlap(d.steps ?? [], f.steps)),
  }))
}
