/**
 * Pure: the part of the fleet's query language (docs/search.md) that the query box needs: terms,
 * completion and the kind.
 */
import { findKind, type Kind } from "../hub/kinds"

/** Keys of terms, with their operator. */
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

/** The keys whose values can be counted, with the field to group by. */
export const counted: Record<string, string> = {
  cluster: "cluster",
  namespace: "namespace",
  ns: "namespace",
  phase: "phase",
  node: "node",
  image: "image",
}

/** The terms of a query; quoted text stays together. */
export function terms(q: string): string[] {
  return q.match(/(?:[^\s"]|"(?:\\.|[^"\\])*"?)+/g) ?? []
}

export function quote(value: string): string {
  return /^[\w./-]+$/.test(value) ? value : `"${value.replace(/["\\]/g, "\\$&")}"`
}

/**
 * The query that finds names while they are typed. Two characters match only the beginning of a
 * name, because no index finds them elsewhere; longer text matches anywhere.
 */
export function named(text: string): string {
  return /^[a-z0-9][a-z0-9.-]$/.test(text) ? `name:${text}*` : `"${text.replace(/["\\]/g, "\\$&")}"`
}

/** Whether the query is complete, so not in the middle of a term. */
export function complete(q: string): boolean {
  const quotes = q.replace(/\\./g, "").split('"').length - 1
  return quotes % 2 === 0 && !/(?:[:=<>,]|(?:^|\s)-)$/.test(q)
}

/**
 * Splits the kind off a query. A query with several kinds, or a negated one, is for the search in
 * all kinds.
 */
export function splitKind(q: string, kinds: Kind[]): { kind?: Kind; rest: string } {
  const all = terms(q)
  const named = all.filter((term) => /^-?kind:/.test(term))
  const kind = named.length === 1 ? findKind(kinds, named[0]!.replace(/^kind:/, "")) : undefined
  return kind ? { kind, rest: all.filter((term) => term !== named[0]).join(" ") } : { rest: all.join(" ") }
}

/** Adds a term to the query, or removes it. It replaces a term with another value of the key. */
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

/** The key of the value at the cursor. */
export function keyAt(q: string, cursor: number): string | undefined {
  return /^-?(\w+)[:=<>]/.exec(termAt(q, cursor).term)?.[1]?.toLowerCase()
}

export type Completion = { from: number; options: string[]; key?: string }

/** The possible texts at the cursor. `values` are the known values of the key there. */
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

/** The query with an option in place of the typed text, and the new position of the cursor. */
export function accept(q: string, cursor: number, from: number, option: string): { q: string; cursor: number } {
  const open = /[:<>]$/.test(option)
  const text = q.slice(0, from) + option + (open ? "" : " ")
  return { q: text + q.slice(cursor).replace(/^\S*\s*/, ""), cursor: text.length }
}
