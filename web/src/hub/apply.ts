// Every edit of an object is saved this way: it is merged with the changes that others made
// meanwhile, a dry run of the API server finds errors and conflicts with other managers, and only
// the fields that the user chose are taken over.

import { fieldPath, merge, put, read } from "../object/merge"
import { apply, get, manager, type Obj, request, StatusError } from "./client"
import { type Difference, equal, format, type JsonObject, type Path, get as valueAt } from "./fields"
import { type Conflict, conflicts, create, editable, type Intent, intent } from "./intent"
import { causeOf } from "./owners"

export type Edit = {
  /** The object's path at its API server. */
  path: string
  /**
   * The wanted object as YAML. base is the object when the editing began, as editable returns it;
   * undefined: it did not exist.
   */
  text: string
  base?: JsonObject
  /** The object at the very beginning, if the text was merged since. */
  began?: JsonObject
  /**
   * Top-level fields that the text does not contain because they are hidden: they keep their
   * values.
   */
  keep?: string[]
}

export type Review = {
  edit: Edit
  live?: Obj
  intent: Intent
  /** The changes of others that were merged into the text. */
  taken: Difference[]
  conflicts: Conflict[]
  /** The resulting object, from the dry run. */
  result?: Obj
  refusal?: StatusError
}

export const json = (object: Obj): JsonObject => object as unknown as JsonObject

/**
 * Thrown for an edit without base if the object exists already: its author has not seen that
 * object.
 */
export class Exists extends Error {}

/** review asks the API server for the result of an edit, by a dry run. It changes nothing. */
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

/** theirs is the edit with the live value of the field of a conflict. */
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

/** Pure: the fields that an apply would take from other managers, from the API server's answer. */
export function othersOf(error: StatusError): { field: string; by: string }[] {
  return (error.status.details?.causes ?? []).flatMap(({ reason, message = "", field = "" }) => {
    const by = /^conflict with ("(?:[^"\\]|\\.)*")/.exec(message)?.[1]
    return reason === "FieldManagerConflict" ? [{ field, by: by ? (JSON.parse(by) as string) : message }] : []
  })
}

// named returns the conflict for a field that the API server names: a field that is sent, or one
// inside it. A conflict known from managedFields is preferred because it is more precise; the
// manager that the server names is added.
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
  // The UID ties the apply to the object that was shown. A forced apply takes fields over only in
  // the state that was shown: it also sends the resourceVersion.
  const metadata = {
    ...(body.metadata as JsonObject),
    ...(of.live && { uid: of.live.metadata.uid }),
    ...(o.force ? { resourceVersion: of.live?.metadata.resourceVersion } : {}),
  }
  return apply(of.edit.path, { ...body, metadata } as unknown as Obj, o)
}
