// The one way by which the console changes objects that somebody edited: what they want is merged with what the object became meanwhile, the API server says in a
// dry run what would be wrong with it and whose fields it would take, and only what was chosen is taken.

import { fieldPath, merge, put, read } from "../object/merge"
import { apply, get, manager, type Obj, request, StatusError } from "./client"
import { type Difference, equal, format, type JsonObject, type Path, get as valueAt } from "./fields"
import { type Conflict, conflicts, create, editable, type Intent, intent } from "./intent"
import { causeOf } from "./owners"

export type Edit = {
  /** The object's path at its API server. */
  path: string
  /** What is wanted, as YAML, and what the object was, as editable gives it, when the editing began; undefined: there was none. */
  text: string
  base?: JsonObject
  /** What it was at the very beginning, if the text was merged since. */
  began?: JsonObject
  /** Fields that the text does not have because they are not shown: they stay as they are. */
  keep?: string[]
}

export type Review = {
  edit: Edit
  live?: Obj
  intent: Intent
  /** What others changed meanwhile, which the text has now. */
  taken: Difference[]
  conflicts: Conflict[]
  /** What it would be, as the API server says. */
  result?: Obj
  refusal?: StatusError
}

export const json = (object: Obj): JsonObject => object as unknown as JsonObject

/** Who wants an object that is there already, without having seen it, is told. */
export class Exists extends Error {}

/** review asks the API server what would come of an edit. Nothing is changed. */
export async function review(edit: Edit, signal?: AbortSignal): Promise<Review> {
  const wanted = read(edit.text).object
  if (!wanted) throw new Error(read(edit.text).problems[0]?.message ?? "")
  const live = await get(edit.path, undefined, signal).catch((e) => {
    if (e instanceof StatusError && e.code === 404 && !edit.base) return undefined
    throw e
  })
  if (!live) return tried({ edit, intent: create(wanted), taken: [], conflicts: [] }, signal)
  if (!edit.base) throw new Exists()
  const now = editable(json(live))
  const [base, theirs] = [without(edit.base, edit.keep), without(now, edit.keep)]
  const { text, taken } = merge(edit.text, base, theirs)
  const merged = { ...read(text).object, ...only(now, edit.keep) }
  const of = intent(json(live), merged)
  const began = edit.began ?? edit.base
  const found = conflicts(of, without(began, edit.keep), theirs)
  return tried({ edit: { ...edit, text, base: now, began }, live, intent: of, taken, conflicts: found }, signal)
}

const without = (object: JsonObject, keys: string[] = []): JsonObject => Object.fromEntries(Object.entries(object).filter(([key]) => !keys.includes(key)))
const only = (object: JsonObject, keys: string[] = []): JsonObject => Object.fromEntries(Object.entries(object).filter(([key]) => keys.includes(key)))

/** theirs is the edit without what it wants of a field. */
export function theirs(of: Review, conflict: Conflict): Edit {
  return { ...of.edit, text: put(of.edit.text, [{ steps: conflict.steps, value: conflict.live }]) }
}

async function tried(of: Review, signal?: AbortSignal): Promise<Review> {
  if (!of.intent.changes) return of
  try {
    return {
      ...of,
      result: await send(of, { dryRun: true, signal }),
      conflicts: of.intent.method === "update" ? of.conflicts : [],
    }
  } catch (e) {
    if (!(e instanceof StatusError)) throw e
    const others = othersOf(e)
    if (others.length === 0) return { ...of, refusal: e }
    const found = others.map(({ field, by }) => named(of, field, by))
    const unique = found.filter((c, i) => found.findIndex((other) => equal(other.steps, c.steps)) === i)
    try {
      return { ...of, conflicts: unique, result: await send(of, { dryRun: true, force: true, signal }) }
    } catch (refusal) {
      if (!(refusal instanceof StatusError)) throw refusal
      return { ...of, conflicts: unique, refusal }
    }
  }
}

/** Pure: whose fields an apply would take, as the API server says. */
export function othersOf(error: StatusError): { field: string; by: string }[] {
  return (error.status.details?.causes ?? []).flatMap(({ reason, message = "", field = "" }) => {
    const by = /^conflict with ("(?:[^"\\]|\\.)*")/.exec(message)?.[1]
    return reason === "FieldManagerConflict" ? [{ field, by: by ? (JSON.parse(by) as string) : message }] : []
  })
}

// What the API server names is a field that is sent, or one in it: managers by their fields are the finer knowledge, the server's word is the last.
function named(of: Review, field: string, by: string): Conflict {
  const within = (steps: Path) => {
    const path = causeOf(steps)
    return field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`) || path.startsWith(`${field}.`) || path.startsWith(`${field}[`)
  }
  const known = of.conflicts.find((conflict) => within(conflict.steps))
  if (known) return { ...known, managers: known.managers.includes(by) ? known.managers : [...known.managers, by] }
  const steps = fieldPath(field)
  const [live, wanted] = [of.live && valueAt(json(of.live), ...steps), valueAt(of.intent.body, ...steps)]
  return { path: format(steps), steps, managers: [by], live, wanted, meanwhile: false }
}

export async function send(of: Review, o: { dryRun?: boolean; force?: boolean; signal?: AbortSignal } = {}): Promise<Obj> {
  const { method, body } = of.intent
  if (method === "update") {
    const query = { fieldManager: manager, fieldValidation: "Strict", dryRun: o.dryRun ? "All" : undefined }
    return (await request(of.edit.path, { method: "PUT", body: JSON.stringify(body), query, signal: o.signal })).json()
  }
  // It is of the object that was shown; what is taken by force is taken of that state of it, and of no other.
  const metadata = {
    ...(body.metadata as JsonObject),
    ...(of.live && { uid: of.live.metadata.uid }),
    ...(o.force ? { resourceVersion: of.live?.metadata.resourceVersion } : {}),
  }
  return apply(of.edit.path, { ...body, metadata } as unknown as Obj, o)
}
