// Three-way merge of YAML: what somebody edits, what the object was when they began, and what it is now.

import { type Document, isMap, isNode, isSeq, parseDocument, stringify } from "yaml"
import type { Status } from "../hub/client"
import { type Difference, diff, equal, get, isObject, type Json, type JsonObject, overlap, type Path } from "../hub/fields"
import { t as say } from "../text/text"

/** Clash is a field that both changed, to something else each. */
export interface Clash {
  path: string
  steps: Path
  base?: Json
  mine?: Json
  theirs?: Json
}

export interface Merged {
  /** The text with what others changed, and mine where both did. */
  text: string
  taken: Difference[]
  clashes: Clash[]
}

/** Read is what a text says, or what is wrong with it and where. */
export interface Read {
  object?: JsonObject
  problems: { message: string; from: number; to: number }[]
}

/** read reads one object of a text. Aliases are not followed without end, and keys are texts. */
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

/** write is an object as the editor shows it first. */
export const write = (object: JsonObject): string => stringify(object, { lineWidth: 0, aliasDuplicateObjects: false })

/** merge takes over what others changed since base. What both changed stays as it is in the text, and is a clash unless both are the same. */
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
    // The wider of the two paths is the one to choose for: a list that I took away, of which they changed an element.
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

/** put sets fields in a text, or takes them out where the value is undefined; comments and the rest stay as they are. */
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

// A map or list that lost its last part to a removal goes with it, as it does on API servers.
function prune(doc: Document, keys: (string | number)[]) {
  while (keys.length > 1) {
    const node = doc.getIn(keys)
    if (!(isMap(node) || isSeq(node)) || node.items.length > 0) return
    doc.deleteIn(keys)
    keys = keys.slice(0, -1)
  }
}

// resolve finds the places of elements that are named. One that is not there is put at the end, if anything is to be put there.
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

/** locate is where in a text the field at a path is, or the nearest above it that is there. */
export function locate(text: string, path: Path): { from: number; to: number } {
  const doc = parse(text)
  const keys = resolve(doc, path, false) ?? []
  for (let n = keys.length; n > 0; n--) {
    const node = doc.getIn(keys.slice(0, n), true)
    if (isNode(node) && node.range) return { from: node.range[0], to: Math.max(node.range[1], node.range[0] + 1) }
  }
  return { from: 0, to: 1 }
}

/** refused are the fields that an API server does not take, and what it says of each: in causes, or, of those that a kind does not have, in its message. */
export function refused({ message, details }: Status): { path: Path; message: string }[] {
  const causes = (details?.causes ?? []).flatMap((c) => (c.field ? [{ path: fieldPath(c.field), message: c.message ?? message }] : []))
  const unknown = [...message.matchAll(/(?:unknown|duplicate) field "([^"]+)"|(\.[^\s:]+): field not declared in schema/g)]
  return [...causes, ...unknown.map(([words, quoted, dotted]) => ({ path: fieldPath(quoted ?? dotted ?? ""), message: words }))]
}

/** fieldPath reads a path as API servers write it in the causes of a refusal: spec.template.spec.containers[0].image. */
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
