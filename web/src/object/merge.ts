// Three-way merge of YAML: the edited text, the object when the editing began, and the object
// now.

import { type Document, isMap, isNode, isSeq, parseDocument, stringify } from "yaml"
import type { Status } from "../hub/client"
import { type Difference, diff, equal, get, isObject, type Json, type JsonObject, overlap, type Path } from "../hub/fields"
import { t as say } from "../text/text"

/** Clash is a field that both sides changed, to different values. */
export interface Clash {
  path: string
  steps: Path
  base?: Json
  mine?: Json
  theirs?: Json
}

export interface Merged {
  /** The text with the changes of others; fields that both changed keep the user's value. */
  text: string
  taken: Difference[]
  clashes: Clash[]
}

/** Read is the object in a text, or the errors with their positions. */
export interface Read {
  object?: JsonObject
  problems: { message: string; from: number; to: number }[]
}

/** read parses one object. The number of aliases is limited, and keys become strings. */
export function read(text: string): Read {
  const doc = parse(text)
  const problems = [...doc.errors, ...doc.warnings].map((e) => ({
    message: e.message.split("\n")[0] ?? "",
    from: e.pos[0],
    to: Math.max(e.pos[1], e.pos[0] + 1),
  }))
  if (problems.length > 0) return { problems }
  let value: unknown
  try {
    value = JSON.parse(JSON.stringify(doc.toJS({ maxAliasCount: 100 })))
  } catch (e) {
    return { problems: [{ message: e instanceof Error ? e.message : String(e), from: 0, to: 1 }] }
  }
  if (!isObject(value)) return { problems: [{ message: say("object.notMap"), from: 0, to: Math.max(1, text.length) }] }
  return { object: value, problems }
}

const parse = (text: string): Document => parseDocument(text, { prettyErrors: false, strict: true, uniqueKeys: true, version: "1.2", schema: "core" })

/** write returns the first text of an object in the editor. */
export const write = (object: JsonObject): string => stringify(object, { lineWidth: 0, aliasDuplicateObjects: false })

/**
 * merge adds the changes that others made since base. A field that both changed keeps its value
 * in the text, and is a clash unless both values are equal.
 */
export function merge(text: string, base: JsonObject, theirs: JsonObject): Merged {
  const mine = read(text).object
  if (!mine) return { text, taken: [], clashes: [] }
  const changed = diff(base, mine, true)
  const taken: Difference[] = []
  const clashes: Clash[] = []
  for (const their of diff(base, theirs, true)) {
    const steps = their.steps ?? []
    const both = changed.filter((my) => overlap(my.steps ?? [], steps))
    if (both.length === 0) taken.push(their)
    // The user chooses for the widest path, such as a list that the user removed while others
    // changed an element.
    const widest = both.map((my) => my.steps ?? []).reduce((a, b) => (b.length < a.length ? b : a), steps)
    if (both.length === 0 || clashes.some((clash) => equal(clash.steps, widest))) continue
    const [was, my, they] = [base, mine, theirs].map((of) => get(of, ...widest))
    if (!equal(my, they)) clashes.push({ path: diffPath(widest, both, their), steps: widest, base: was, mine: my, theirs: they })
  }
  return {
    text: put(
      text,
      taken.map((t) => ({ steps: t.steps ?? [], value: t.after })),
    ),
    taken,
    clashes,
  }
}

function diffPath(steps: Path, mine: Difference[], their: Difference): string {
  return [their, ...mine].find((d) => equal(d.steps ?? [], steps))?.path ?? their.path
}

/**
 * put sets fields in a text, or removes them if the value is undefined. Comments and other fields
 * stay.
 */
export function put(text: string, changes: { steps: Path; value?: Json }[]): string {
  if (changes.length === 0) return text
  const doc = parse(text)
  for (const { steps, value } of changes) {
    const keys = resolve(doc, steps, value !== undefined)
    if (!keys) continue
    if (value === undefined) {
      doc.deleteIn(keys)
      prune(doc, keys.slice(0, -1))
    } else doc.setIn(keys, doc.createNode(value))
  }
  return doc.toString({ lineWidth: 0 })
}

// A map or list that becomes empty by a removal is removed too, as on API servers.
function prune(doc: Document, keys: (string | number)[]) {
  while (keys.length > 1) {
    const node = doc.getIn(keys)
    if (!(isMap(node) || isSeq(node)) || node.items.length > 0) return
    doc.deleteIn(keys)
    keys = keys.slice(0, -1)
  }
}

// resolve returns the keys of a path with an index for each named element. A missing element is
// appended if putting is set; otherwise the result is undefined.
function resolve(doc: Document, steps: Path, putting: boolean): (string | number)[] | undefined {
  const keys: (string | number)[] = []
  for (const step of steps) {
    if (typeof step !== "object") {
      keys.push(step)
      continue
    }
    const list = keys.length === 0 ? doc.contents : doc.getIn(keys)
    const items = isSeq(list) ? list.items : []
    let index = items.findIndex((item) => isMap(item) && Object.entries(step).every(([by, is]) => equal(item.get(by) as Json, is)))
    if (index < 0) {
      if (!putting) return undefined
      index = items.length
      if (!isSeq(list)) doc.setIn(keys, doc.createNode([]))
      doc.setIn([...keys, index], doc.createNode(step))
    }
    keys.push(index)
  }
  return keys
}

/** locate returns the position of the field at a path, or of its nearest parent in the text. */
export function locate(text: string, path: Path): { from: number; to: number } {
  const doc = parse(text)
  const keys = resolve(doc, path, false) ?? []
  for (let n = keys.length; n > 0; n--) {
    const node = doc.getIn(keys.slice(0, n), true)
    if (isNode(node) && node.range) return { from: node.range[0], to: Math.max(node.range[1], node.range[0] + 1) }
  }
  return { from: 0, to: 1 }
}

/**
 * refused returns the fields that an API server refused, each with its message: from causes or,
 * for unknown and duplicate fields, from the text of the error.
 */
export function refused({ message, details }: Status): { path: Path; message: string }[] {
  const causes = (details?.causes ?? []).flatMap((c) => (c.field ? [{ path: fieldPath(c.field), message: c.message ?? message }] : []))
  const unknown = [...message.matchAll(/(?:unknown|duplicate) field "([^"]+)"|(\.[^\s:]+): field not declared in schema/g)]
  return [...causes, ...unknown.map(([words, quoted, dotted]) => ({ path: fieldPath(quoted ?? dotted ?? ""), message: words }))]
}

/** fieldPath parses a path from the causes of a refusal: spec.template.spec.containers[0].image. */
export function fieldPath(path: string): Path {
  const out: Path = []
  for (const [, key, inner] of path.matchAll(/\.?([^.[\]]+)|\[([^\]]*)\]/g)) {
    if (key !== undefined) out.push(key)
    else if (/^\d+$/.test(inner ?? "")) out.push(Number(inner))
    else if (/^[\w-]+=/.test(inner ?? "")) {
      const names = [...(inner ?? "").matchAll(/([\w-]+)=("(?:[^"\\]|\\.)*"|[^,]*)/g)].map(([, by = "", is = ""]) => [by, json(is)] as const)
      out.push(Object.fromEntries(names))
    } else out.push((inner ?? "").replace(/^['"]|['"]$/g, ""))
  }
  return out
}

function json(text: string): Json {
  try {
    return JSON.parse(text) as Json
  } catch {
    return text
  }
}
