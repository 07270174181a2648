/** Pure: the commands of k9s that have a counterpart here: `:deploy ns`, `:ctx oak`, `:po @oak`. */
import { findKind, type Kind } from "../hub/kinds"
import { clusterLink, tableLink } from "../hub/link"
import { quote } from "../table/query"

/** The names in k9s of our screens. */
const screens: Record<string, string> = {
  ctx: "/",
  context: "/",
  contexts: "/",
  cluster: "/",
  clusters: "/",
  fleet: "/",
  policies: "/policies",
  changes: "/changes",
  placements: "/placements",
  operations: "/operations",
  join: "/join",
  all: "/table?kind=*",
}

/** The target of a command; undefined: not a command. `/text` and further words filter by name. */
export function command(text: string, kinds: Kind[]): { href: string; kind?: Kind; namespace?: string } | undefined {
  const [name = "", ...rest] = text.trim().replace(/^:/, "").split(/\s+/).filter(Boolean)
  const screen = screens[name.toLowerCase()]
  if (screen) return { href: screen === "/" && rest[0] ? clusterLink(rest[0]) : screen }
  const kind = name ? findKind(kinds, name) : undefined
  if (!kind) return undefined
  const q: string[] = []
  let namespace: string | undefined
  for (const word of rest) {
    if (word.startsWith("@")) q.push(`cluster:${quote(word.slice(1))}`)
    else if (word.startsWith("/")) q.push(quote(word.slice(1)))
    else if (word.includes("=")) q.push(word)
    else if (kind.namespaced && !namespace && word !== "all") {
      namespace = word
      q.push(`namespace:${quote(word)}`)
    }
  }
  return { href: tableLink(kind, { q: q.join(" ") }), kind, namespace }
}

/**
 * Kinds with a name that matches the text: equal names first, then those that begin with it, then
 * those that contain it.
 */
export function kindsLike(kinds: Kind[], text: string, most = 8): Kind[] {
  const typed = text.toLowerCase()
  const rank = (k: Kind): number => {
    const names = [k.kind, k.resource, k.singular, ...k.shortNames].map((n) => n.toLowerCase())
    const base = k.group.includes(".") && !k.group.endsWith(".k8s.io") ? 0.5 : 0
    if (names.includes(typed)) return base
    if (names.some((n) => n.startsWith(typed))) return 1 + base
    return names.some((n) => n.includes(typed)) ? 2 + base : 9
  }
  return kinds
    .filter((k) => k.verbs.includes("list"))
    .map((k) => ({ k, rank: rank(k) }))
    .filter((r) => r.rank < 9)
    .sort((a, b) => a.rank - b.rank || a.k.kind.length - b.k.kind.length || a.k.of.localeCompare(b.k.of))
    .slice(0, most)
    .map((r) => r.k)
}

/** Splits a text that begins with a verb into the verb and the name of its object. */
export function verbOf(text: string): { act: "why" | "cordon" | "uncordon"; name: string } | undefined {
  const [, act, name = ""] = /^(why|cordon|uncordon)(?:\s+(.*))?$/i.exec(text) ?? []
  return act ? { act: act.toLowerCase() as "why", name: name.toLowerCase().replace(/^.*\//, "") } : undefined
}
