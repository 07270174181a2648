// Who owns which field of an object, as its managedFields say.

import { manager } from "./client"
import { equal, isObject, type Json, type JsonObject, list, type Path, type Step, text } from "./fields"

/** Owned is a field, who set it, and what is below it. Where nothing is below, lists and maps are owned as a whole. */
export interface Owned {
  managers: Set<string>
  below: Map<string, Owned>
}

const none = (): Owned => ({ managers: new Set(), below: new Map() })

/** owned reads the fields of an object that managers own who are chosen; of subresources only if asked for. */
export function owned(object: JsonObject, chosen: (entry: JsonObject) => boolean = () => true): Owned {
  const root = none()
  for (const entry of list(object, "metadata", "managedFields")) {
    if (!isObject(entry) || text(entry, "apiVersion") !== text(object, "apiVersion") || !chosen(entry)) continue
    if (isObject(entry.fieldsV1 ?? null)) add(root, entry.fieldsV1 as JsonObject, text(entry, "manager"))
  }
  return root
}

/** ours are the fields that the console owns by an apply: those that it must go on sending. */
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

/** elementsBy are the names of the fields that name the elements of a list, or undefined if none do. */
export function elementsBy(field: Owned | undefined): string[] | undefined {
  for (const key of field?.below.keys() ?? []) if (key.startsWith("k:")) return Object.keys(JSON.parse(key.slice(2)))
  return undefined
}

/** isSet is true of a list whose elements are owned one by one, such as finalizers. */
export const isSet = (field: Owned | undefined): boolean => [...(field?.below.keys() ?? [])].some((key) => key.startsWith("v:"))

/** into is what is owned below one step. */
export function into(field: Owned | undefined, step: Step): Owned | undefined {
  if (!field || typeof step === "number") return undefined
  if (typeof step === "string") return field.below.get(`f:${step}`)
  for (const [key, below] of field.below) if (key.startsWith("k:") && equal(JSON.parse(key.slice(2)) as Json, step)) return below
  return undefined
}

/** ownsElement is true if an element of a set is owned. */
export const ownsElement = (field: Owned | undefined, value: Json): boolean => field?.below.has(`v:${JSON.stringify(value)}`) ?? false

/** managers are all that own a field, something in it, or what it is owned as a part of. */
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

// An element may be written by one of the several fields that name it: containerPort without protocol.
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

/** causeOf writes a path as the API server does in the causes of a conflict: .spec.containers[name="web"].image. */
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
