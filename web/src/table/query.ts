/** Pure: the query language of the fleet (docs/search.md) as far as the box needs it: terms, completion, which kind is meant. */
import { findKind, type Kind } from "../hub/kinds"

/** Keys of terms, each with an example of what may follow. */
export const keys = [
  "cluster:",
  "namespace:",
  "name:",
  "kind:",
  "label:",
  "phase:",
  "node:",
  "image:",
  "age<",
  "age>",
  "created>",
  "owner:",
  "text:",
  "restarts>",
  "replicas:",
  "uses:",
  "has:",
  "is:",
] as const

const fixed: Record<string, string[]> = {
  has: ["annotation", "finalizer", "image", "label", "node", "owner"],
  is: ["ready", "terminating"],
}

/** What counts of the list can tell: the values that there are. */
export const counted: Record<string, string> = {
  cluster: "cluster",
  namespace: "namespace",
  ns: "namespace",
  phase: "phase",
  node: "node",
  image: "image",
}

/** The terms of a query, quotes kept together. */
export function terms(q: string): string[] {
  return q.match(/(?:[^\s"]|"(?:\\.|[^"\\])*"?)+/g) ?? []
}

export function quote(value: string): string {
  return /^[\w./-]+$/.test(value) ? value : `"${value.replace(/["\\]/g, "\\$&")}"`
}

/** What finds names as they are typed: two characters what begins so, for no index leads to what has them elsewhere; more what has them anywhere. */
export function named(text: string): string {
  return /^[a-z0-9][a-z0-9.-]$/.test(text) ? `name:${text}*` : `"${text.replace(/["\\]/g, "\\$&")}"`
}

/** Whether it can be asked as it stands, or somebody is in the middle of a term. */
export function complete(q: string): boolean {
  const quotes = q.replace(/\\./g, "").split('"').length - 1
  return quotes % 2 === 0 && !/(?:[:=<>,]|(?:^|\s)-)$/.test(q)
}

/** What of a query says the kind, and the rest. Several kinds, or a negated one, are for the search of all kinds. */
export function splitKind(q: string, kinds: Kind[]): { kind?: Kind; rest: string } {
  const all = terms(q)
  const named = all.filter((term) => /^-?kind:/.test(term))
  const kind = named.length === 1 ? findKind(kinds, named[0]!.replace(/^kind:/, "")) : undefined
  return kind ? { kind, rest: all.filter((term) => term !== named[0]).join(" ") } : { rest: all.join(" ") }
}

/** The query with a term, or without it if it is there. Another value of the same key gives way. */
export function toggled(q: string, key: string, value: string): string {
  const term = `${key}:${value === "" ? '""' : quote(value)}`
  const all = terms(q)
  const others = all.filter((other) => !other.startsWith(`${key}:`) && !(key === "namespace" && other.startsWith("ns:")))
  return (all.includes(term) ? others : [...others, term]).join(" ")
}

export function has(q: string, key: string, value: string): boolean {
  return terms(q).includes(`${key}:${value === "" ? '""' : quote(value)}`)
}

/** The term that ends at the cursor, and where it begins. */
function termAt(q: string, cursor: number): { term: string; from: number } {
  const before = q.slice(0, cursor)
  const last = terms(before).at(-1) ?? ""
  return before.endsWith(last) && last !== "" ? { term: last, from: cursor - last.length } : { term: "", from: cursor }
}

/** The key whose value is being typed at the cursor. */
export function keyAt(q: string, cursor: number): string | undefined {
  return /^-?(\w+)[:=<>]/.exec(termAt(q, cursor).term)?.[1]?.toLowerCase()
}

export type Completion = { from: number; options: string[]; key?: string }

/** What may stand at the cursor. `values` are those known of the key there. */
export function completion(q: string, cursor: number, kinds: Kind[], values: string[]): Completion {
  const { term, from: begin } = termAt(q, cursor)
  const key = keyAt(q, cursor)
  if (key === undefined) {
    const not = term.startsWith("-") ? 1 : 0
    const word = term.slice(not).toLowerCase()
    return { from: begin + not, options: keys.filter((k) => k.startsWith(word)) }
  }
  const at = Math.max(term.lastIndexOf(","), term.search(/[:=<>]/)) + 1
  const typed = term.slice(at).replace(/^"/, "").toLowerCase()
  const known = key === "kind" ? kinds.map((k) => (k.group.includes(".") ? k.of : k.kind)) : (fixed[key] ?? values)
  const matching = known.filter((v) => v !== "" && v.toLowerCase().includes(typed) && v.toLowerCase() !== typed)
  matching.sort((a, b) => Number(b.toLowerCase().startsWith(typed)) - Number(a.toLowerCase().startsWith(typed)))
  return { from: begin + at, options: matching.slice(0, 12).map(quote), key }
}

/** The query with an option in place of what was being typed, and where the cursor is then. */
export function accept(q: string, cursor: number, from: number, option: string): { q: string; cursor: number } {
  const open = /[:<>]$/.test(option)
  const text = q.slice(0, from) + option + (open ? "" : " ")
  return { q: text + q.slice(cursor).replace(/^\S*\s*/, ""), cursor: text.length }
}
