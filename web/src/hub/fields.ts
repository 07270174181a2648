// Fields of objects by path, as in the hub's history: spec.containers[name=web].image.

export type Json = null | boolean | number | string | Json[] | JsonObject
export type JsonObject = { [key: string]: Json | undefined }

/**
 * Step leads into a value: a key of a map, or an element of a list by its index or by the fields
 * that identify it.
 */
export type Step = string | number | JsonObject
export type Path = Step[]

/**
 * Difference is a field that differs: its values before and after, undefined where the field is
 * absent.
 */
export interface Difference {
  path: string
  steps?: Path
  before?: Json
  after?: Json
  /** The values are not shown. */
  hidden?: boolean
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value)
}

/**
 * at returns the own property of a map. Names such as __proto__ or constructor come from outside
 * and are ordinary keys.
 */
export function at(map: JsonObject, key: string): Json | undefined {
  return Object.hasOwn(map, key) ? map[key] : undefined
}

/** get returns the value at the path. */
export function get(value: Json | undefined, ...steps: Path): Json | undefined {
  for (const step of steps) {
    if (typeof step === "string") value = isObject(value) ? at(value, step) : undefined
    else if (!Array.isArray(value)) return undefined
    else value = value[typeof step === "number" ? step : place(value, step)]
  }
  return value
}

/** text returns the scalar at the path as text, or "". */
export function text(value: Json | undefined, ...steps: Path): string {
  const found = get(value, ...steps)
  return typeof found === "string" || typeof found === "number" || typeof found === "boolean" ? String(found) : ""
}

/** list returns the list at the path, or an empty list. */
export function list(value: Json | undefined, ...steps: Path): Json[] {
  const found = get(value, ...steps)
  return Array.isArray(found) ? found : []
}

/** place returns the index of the first element that has all the fields of named, or -1. */
export function place(of: Json[], named: JsonObject): number {
  return of.findIndex((element) => isObject(element) && Object.entries(named).every(([by, is]) => equal(at(element, by), is)))
}

export function equal(a: Json | undefined, b: Json | undefined): boolean {
  if (a === b) return true
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((element, i) => equal(element, b[i]))
  if (!isObject(a) || !isObject(b)) return false
  const keys = Object.keys(a)
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key]))
}

/** format writes a path for people. */
export function format(path: Path): string {
  let out = ""
  for (const step of path) {
    if (typeof step === "number") out += `[${step}]`
    else if (typeof step === "object") {
      const named = Object.entries(step).map(([by, is]) => `${by}=${typeof is === "string" ? is : JSON.stringify(is)}`)
      out += `[${named.join(",")}]`
    } else if (/[./'[\]]/.test(step)) out += `['${step}']`
    else out += out === "" ? step : `.${step}`
  }
  return out
}

/** overlap reports whether one path equals or contains the other. */
export function overlap(a: Path, b: Path): boolean {
  const shorter = Math.min(a.length, b.length)
  return a.slice(0, shorter).every((step, i) => equal(step, b[i]))
}

// Fields that identify the elements of a list, the most specific first: several volumeMounts may
// have the same name, but not the same mountPath.
const naming = ["mountPath", "name", "type", "key", "containerPort", "port", "ip", "uid", "topologyKey"]

function namesBy(of: Json[], by: string): Map<Json, Json> | undefined {
  const names = new Map<Json, Json>()
  for (const element of of) {
    const name = isObject(element) ? at(element, by) : undefined
    if ((typeof name !== "string" && typeof name !== "number") || names.has(name)) return undefined
    names.set(name, element)
  }
  return names
}

/**
 * diff returns the fields that differ between two values. Elements of lists without identifying
 * fields are compared by index; if whole is set, such a list is one field.
 */
export function diff(before: Json | undefined, after: Json | undefined, whole = false): Difference[] {
  const out: Difference[] = []
  compare([], before, after, whole, out)
  return out
}

function compare(steps: Path, a: Json | undefined, b: Json | undefined, whole: boolean, out: Difference[]) {
  if (isObject(a) && isObject(b)) {
    const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].sort()
    for (const key of keys) compare([...steps, key], at(a, key), at(b, key), whole, out)
  } else if (Array.isArray(a) && Array.isArray(b) && (a.length > 0 || b.length > 0)) compareLists(steps, a, b, whole, out)
  else if (!equal(a, b)) out.push({ path: format(steps), steps, before: a, after: b })
}

function compareLists(steps: Path, a: Json[], b: Json[], whole: boolean, out: Difference[]) {
  for (const by of naming) {
    const [as, bs] = [namesBy(a, by), namesBy(b, by)]
    if (!as || !bs) continue
    const found = out.length
    for (const name of new Set([...as.keys(), ...bs.keys()])) compare([...steps, { [by]: name }], as.get(name), bs.get(name), whole, out)
    const [first, second] = [[...as.keys()], [...bs.keys()]]
    // Only the order differs.
    if (out.length === found && !equal(first, second)) out.push({ path: format(steps), steps, before: first, after: second })
    return
  }
  if (whole) {
    if (!equal(a, b)) out.push({ path: format(steps), steps, before: a, after: b })
    return
  }
  for (let i = 0; i < Math.max(a.length, b.length); i++) compare([...steps, i], a[i], b[i], whole, out)
}
