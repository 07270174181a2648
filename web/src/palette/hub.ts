// Objects of the hub by name. The hub's API cannot search for a part of a name, so the metadata
// of the first objects of each kind is read and kept for a moment.

import { useAnswer } from "../hub/answer"
import { type List, request } from "../hub/client"
import { type Kind, pathOf, useHubKinds } from "../hub/kinds"
import { objectLink } from "../hub/link"
import { askRights, type Rights, scopes, where } from "../hub/rights"
import { group as policyGroup, kinds as policyKinds } from "../policy/form"
import { policyLink } from "../policy/link"

export interface Named {
  kind: Kind
  namespace: string
  name: string
}

interface Names {
  all: Named[]
  /** The kinds with more objects, and those that could not be read. */
  cut: string[]
}

/** The hub has no objects of these kinds of its own, or they are found in another way. */
const others = ["clusterresourcebindings", "clusters", "events", "nodes", "pods", "resourcebindings"]
const [most, lifeMs] = [250, 20_000]
/**
 * The most requests. For a user with rights in many namespaces, all kinds of the first ones are
 * read.
 */
const questions = 100
const accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

async function read(rights: Rights, kinds: Kind[]): Promise<Names> {
  const asked = kinds.flatMap((kind) =>
    others.includes(kind.resource) ? [] : scopes(where(rights, "list", kind.group, kind.resource)).map((ns, turn) => ({ kind, turn, path: pathOf(kind, ns) })),
  )
  asked.sort((a, b) => a.turn - b.turn)
  const answers = await Promise.allSettled(
    asked.slice(0, questions).map(async ({ path }): Promise<List> => (await request(path, { accept, query: { limit: most } })).json()),
  )
  const names: Names = { all: [], cut: [] }
  asked.forEach(({ kind }, i) => {
    const answer = answers[i]
    if (answer?.status !== "fulfilled" || answer.value.metadata.continue) names.cut.push(kind.kind)
    if (answer?.status === "fulfilled")
      names.all.push(...(answer.value.items ?? []).map(({ metadata: m }) => ({ kind, namespace: m.namespace ?? "", name: m.name })))
  })
  return { ...names, cut: [...new Set(names.cut)] }
}

let kept: { at: number; rights: Rights; names: Promise<Names> } | undefined

/** Objects of the hub whose names contain the text, among those that the user may list. */
export function useNames(text: string): Names {
  const kinds = useHubKinds()
  const ask = async () => {
    const rights = await askRights()
    if (!kept || kept.rights !== rights || Date.now() - kept.at > lifeMs) kept = { at: Date.now(), rights, names: read(rights, kinds!) }
    return kept.names
  }
  const { data } = useAnswer(kinds ? ask : undefined, "names at the hub")
  return text.length > 1 && data ? { ...data, all: like(data.all, text) } : { all: [], cut: [] }
}

/** Pure: the best matches: names that begin with the text first, then short ones. */
export function like(all: Named[], text: string, most = 6): Named[] {
  const typed = text.toLowerCase()
  const rank = (n: Named) => (n.name.startsWith(typed) ? 0 : 1)
  return all
    .filter((n) => n.name.includes(typed))
    .sort((a, b) => rank(a) - rank(b) || a.name.length - b.name.length || a.name.localeCompare(b.name) || a.kind.kind.localeCompare(b.kind.kind))
    .slice(0, most)
}

/** The page of an object of the hub: some kinds have their own. */
export function linkOf({ kind, namespace, name }: Named): string {
  if (kind.group === policyGroup && kind.kind in policyKinds) return policyLink({ kind: kind.kind, namespace, name })
  if (kind.of === "Operation.lifecycle.orrery.dev") return `/operations/${encodeURIComponent(name)}`
  return objectLink({ cluster: "", kind: kind.kind, group: kind.group, namespace, name })
}
