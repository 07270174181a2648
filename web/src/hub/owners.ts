// Ownership of an object's fields, from its managedFields.

import { manager } from "./client"
import { equal, isObject, type Json, type JsonObject, list, type Path, type Step, text } from "./fields"

/**
 * Owned is a field, its managers and the fields below it. Lists and maps without fields below are
 * owned as a whole.
 */
export interface Owned {
  managers: Set<string>
  below: Map<string, Owned>
}

const none = (): Owned => ({ managers: new Set(), below: new Map() })

/**
 * owned returns the fields of an object by manager, from the entries of managedFields for which
 * chosen is true. It skips entries of another apiVersion.
 */
export function owned(object: JsonObject, chosen: (entry: JsonObject) => boolean = () => true): Owned {
  const root = none()
  for (const entry of list(object, "metadata", "managedFields")) {
    if (!isObject(entry) || text(entry, "apiVersion") !== text(object, "apiVersion") || !chosen(entry)) continue
    if (isObject(entry.fieldsV1 ?? null)) add(root, entry.fieldsV1 as JsonObject, text(entry, "manager"))
  }
  return root
}

/** ours are the fields that the console owns by an apply, which it must send again. */
export const ours = (object: JsonObject): Owned => owned(object, (e) => text(e, "manager") === manager && text(e, "operation") === "Apply" && !e.subresource)

function add(to: Owned, fields: JsonObject, by: string) {
  for (const [key, below] of Object.entries(fields)) {
    if (key === ".") {
      to.managers.add(by)
      continue
    }
    const field = to.below.get(key) ?? none()
    to.below.set(key, field)
    if (isObject(below) && Object.keys(below).length > 0) add(field, below, by)
    else field.managers.add(by)
  }
}

/**
 * elementsBy returns the names of the fields that identify the elements of a list; undefined:
 * there are none.
 */
export function elementsBy(field: Owned | undefined): string[] | undefined {
  for (const key of field?.below.keys() ?? []) if (key.startsWith("k:")) return Object.keys(JSON.parse(key.slice(2)))
  return undefined
}

/** isSet reports whether the elements of a list are owned one by one, such as finalizers. */
export const isSet = (field: Owned | undefined): boolean => [...(field?.below.keys() ?? [])].some((key) => key.startsWith("v:"))

/** into returns what is owned below one step. */
export function into(field: Owned | undefined, step: Step): Owned | undefined {
  if (!field || typeof step === "number") return undefined
  if (typeof step === "string") return field.below.get(`f:${step}`)
  for (const [key, below] of field.below) if (key.startsWith("k:") && equal(JSON.parse(key.slice(2)) as Json, step)) return below
  return undefined
}

/** ownsElement reports whether an element of a set is owned. */
export const ownsElement = (field: Owned | undefined, value: Json): boolean => field?.below.has(`v:${JSON.stringify(value)}`) ?? false

/**
 * managers returns the owners of a field: of the field itself, of a field in it, or of the atomic
 * list or map that contains it.
 */
export function managers(root: Owned, path: Path): string[] {
  let field: Owned | undefined = root
  for (const step of path) {
    if (field.below.size === 0) break
    const keys = elementsBy(field)
    field = into(field, typeof step === "object" && keys ? named(field, step) : step)
    if (!field) return []
  }
  const out = new Set<string>()
  collect(field, out)
  return [...out].sort()
}

// An element may be identified by some of its key fields: containerPort without protocol.
function named(field: Owned, step: JsonObject): JsonObject {
  for (const key of field.below.keys()) {
    const names = key.startsWith("k:") ? (JSON.parse(key.slice(2)) as JsonObject) : {}
    if (key.startsWith("k:") && Object.entries(step).every(([by, is]) => equal(names[by], is))) return names
  }
  return step
}

function collect(field: Owned, out: Set<string>) {
  for (const by of field.managers) out.add(by)
  for (const below of field.below.values()) collect(below, out)
}

/**
 * causeOf writes a path as the API server does in causes of conflicts:
 * .spec.containers[name="web"].image.
 */
export function causeOf(path: Path): string {
  return path
    .map((step) => {
      if (typeof step === "string") return `.${step}`
      if (typeof step === "number") return `[${step}]`
      const names = Object.entries(step).sort(([a], [b]) => (a < b ? -1 : 1))
      return `[${names.map(([by, is]) => `${by}=${JSON.stringify(is)}`).join(",")}]`
    })
    .join("")
}
