/**
 * Pure: a field's description in a kind's OpenAPI schema, and the field at a position in a YAML
 * text.
 */
import { isObject, type Json, type JsonObject, list, text } from "../hub/fields"

export type Schema = JsonObject
export type Document = { components?: { schemas?: Record<string, Schema> } }

/** The schema of a kind in an OpenAPI v3 document. */
export function schemaOf(doc: Document, group: string, version: string, kind: string): Schema | undefined {
  return Object.values(doc.components?.schemas ?? {}).find((schema) =>
    list(schema, "x-kubernetes-group-version-kind").some(
      (gvk) => text(gvk, "group") === group && text(gvk, "version") === version && text(gvk, "kind") === kind,
    ),
  )
}

/** A schema with its reference resolved. Kubernetes wraps references in an allOf of one element. */
export function resolved(doc: Document, schema: Json | undefined, depth = 0): Schema | undefined {
  if (!isObject(schema) || depth > 8) return undefined
  const name = /^#\/components\/schemas\/(.+)$/.exec(text(schema, "$ref"))?.[1]
  if (name) return resolved(doc, doc.components?.schemas?.[name], depth + 1)
  const [only] = list(schema, "allOf")
  if (only === undefined) return schema
  const { allOf: _, ...rest } = schema
  return { ...resolved(doc, only, depth + 1), ...rest }
}

/** The schema of the field at a path; "[]" is an element of a list. */
export function below(doc: Document, schema: Schema | undefined, path: string[]): Schema | undefined {
  let here = resolved(doc, schema)
  for (const step of path) {
    if (!here) return undefined
    const properties = here.properties
    const next = step === "[]" ? here.items : isObject(properties) && Object.hasOwn(properties, step) ? properties[step] : here.additionalProperties
    here = resolved(doc, next)
  }
  return here
}

export type Suggestion = { label: string; type: string; about: string; required: boolean }

/** The fields that a schema allows. */
export function fieldsOf(doc: Document, schema: Schema | undefined): Suggestion[] {
  const properties = schema?.properties
  if (!isObject(properties)) return []
  const required = list(schema, "required")
  return Object.entries(properties).map(([label, field]) => {
    const of = resolved(doc, field)
    return { label, type: typeOf(of), about: text(of, "description"), required: required.includes(label) }
  })
}

export function typeOf(schema: Schema | undefined): string {
  if (schema?.["x-kubernetes-int-or-string"]) return "int or string"
  if (schema?.additionalProperties) return "map"
  return text(schema, "type") || (schema?.properties ? "object" : "")
}

/** The values that a field may have. */
export function valuesOf(schema: Schema | undefined): string[] {
  if (text(schema, "type") === "boolean") return ["true", "false"]
  return list(schema, "enum").map(String)
}

export type Place = { path: string[]; key: string; value: boolean }

/**
 * The field at a position, from the indentation of lines: a text is rarely complete while it is
 * typed.
 */
export function placeAt(source: string, position: number): Place {
  const before = source.slice(0, position)
  const lines = before.split("\n")
  const current = lines.pop() ?? ""
  const here = parts(current)
  const path: string[] = []
  let column = here.column
  const pending = here.dashes
  for (let i = 0; i < pending.length; i++) path.unshift("[]")
  if (pending.length > 0) column = pending[0] ?? column
  // A list may have the same indentation as its key.
  let inList = pending.length > 0
  for (let i = lines.length - 1; i >= 0 && (column > 0 || inList); i--) {
    const line = lines[i] ?? ""
    if (/^\s*(#|$)/.test(line)) continue
    const above = parts(line)
    const isParent = above.key !== undefined && (above.column < column || (inList && above.column === column && above.dashes.length === 0))
    if (isParent) {
      path.unshift(above.key ?? "")
      column = above.column
      inList = false
    }
    if (above.dashes.length > 0 && (above.dashes[0] ?? 0) < column && (above.column <= column || isParent)) {
      for (const _ of above.dashes) path.unshift("[]")
      column = above.dashes[0] ?? 0
      inList = true
    }
  }
  const colon = /^[^:]*:\s/.test(here.rest)
  return { path: colon ? [...path, here.key ?? ""] : path, key: here.key ?? "", value: colon }
}

function parts(line: string): { dashes: number[]; column: number; key?: string; rest: string } {
  const dashes: number[] = []
  let column = /^ */.exec(line)?.[0].length ?? 0
  while (line.slice(column, column + 2) === "- " || line.slice(column) === "-") {
    dashes.push(column)
    column += 1 + (/^ */.exec(line.slice(column + 1))?.[0].length ?? 0)
  }
  const rest = line.slice(column)
  const key = /^(?:"([^"]*)"|'([^']*)'|([^\s:#][^:#]*?))\s*:(?:\s|$)/.exec(rest)
  return { dashes, column, key: key ? (key[1] ?? key[2] ?? key[3]) : undefined, rest }
}
