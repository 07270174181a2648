// The graph of the objects that use each other, reduced to a size that people can read.

export interface Node {
  cluster?: string
  group?: string
  version?: string
  resource?: string
  kind: string
  namespace?: string
  name: string
  uid?: string
  state?: "Missing" | "Unknown"
  /** The number of objects that the node stands for, if more than one. */
  count?: number
}

export interface Edge {
  from: number
  to: number
  relation: string
}

/** Graph is an ObjectGraph of the fleet API. */
export interface Graph {
  roots: number[]
  nodes: Node[]
  edges: Edge[]
  cut?: string
}

/** The most nodes that are laid out. */
export const most = 500

/**
 * collapse reduces a graph of more than limit nodes: one node stands for all pods of an owner in
 * the same state. If there are still too many, those farthest from the roots are left out; left
 * is their number.
 */
export function collapse(graph: Graph, limit = most): { graph: Graph; left: number } {
  if (graph.nodes.length <= limit) return { graph, left: 0 }
  const ownerOf = new Map<number, number>()
  for (const { from, to, relation } of graph.edges) {
    if (relation === "owner" && isPod(graph.nodes[to]) && !graph.roots.includes(to)) ownerOf.set(to, from)
  }
  const standIn = new Map<string, number>()
  const place: number[] = []
  const nodes: Node[] = []
  graph.nodes.forEach((node, i) => {
    const owner = ownerOf.get(i)
    const key = owner === undefined ? "" : `${owner} ${node.state ?? ""}`
    const known = owner === undefined ? undefined : standIn.get(key)
    const there = known === undefined ? undefined : nodes[known]
    if (known !== undefined && there) {
      place.push(known)
      nodes[known] = { ...there, name: "", uid: undefined, count: (there.count ?? 1) + 1 }
      return
    }
    if (owner !== undefined) standIn.set(key, nodes.length)
    place.push(nodes.length)
    nodes.push(node)
  })
  const edges = unique(graph.edges.map((e) => ({ ...e, from: place[e.from] ?? 0, to: place[e.to] ?? 0 })))
  return nearest({ ...graph, roots: graph.roots.map((root) => place[root] ?? 0), nodes, edges }, limit)
}

const isPod = (node: Node | undefined): boolean => node?.kind === "Pod" && !node.group

function unique(edges: Edge[]): Edge[] {
  return [...new Map(edges.map((e) => [`${e.from} ${e.to} ${e.relation}`, e])).values()]
}

function nearest(graph: Graph, limit: number): { graph: Graph; left: number } {
  if (graph.nodes.length <= limit) return { graph, left: 0 }
  const beside = graph.nodes.map((): number[] => [])
  for (const { from, to } of graph.edges) {
    beside[from]?.push(to)
    beside[to]?.push(from)
  }
  const kept = new Set(graph.roots.slice(0, limit))
  // A Set's iterator also visits the elements that are added meanwhile.
  for (const node of kept) for (const next of beside[node] ?? []) if (kept.size < limit) kept.add(next)
  const place = new Map([...kept].map((node, i) => [node, i]))
  const edges = graph.edges.flatMap((e) => {
    const [from, to] = [place.get(e.from), place.get(e.to)]
    return from === undefined || to === undefined ? [] : [{ ...e, from, to }]
  })
  const roots = graph.roots.flatMap((root) => place.get(root) ?? [])
  const nodes = [...kept].flatMap((i) => graph.nodes[i] ?? [])
  return { graph: { ...graph, roots, nodes, edges }, left: graph.nodes.length - kept.size }
}
