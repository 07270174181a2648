// Positions of the nodes of a graph: users on the left, what they use on the right.

import { Graph as Dagre, layout as place } from "@dagrejs/dagre"
import type { Graph } from "./collapse"

export const size = { width: 210, height: 48 }

export interface Point {
  x: number
  y: number
}

export function layout(graph: Graph): Point[] {
  const dagre = new Dagre({ multigraph: true })
  dagre.setGraph({ rankdir: "LR", nodesep: 16, ranksep: 72, marginx: 16, marginy: 16 })
  dagre.setDefaultEdgeLabel(() => ({}))
  for (const i of graph.nodes.keys()) dagre.setNode(String(i), { ...size })
  for (const { from, to, relation } of graph.edges) dagre.setEdge(String(from), String(to), {}, relation)
  place(dagre)
  return graph.nodes.map((_, i) => {
    const { x, y } = dagre.node(String(i))
    return { x: (x ?? 0) - size.width / 2, y: (y ?? 0) - size.height / 2 }
  })
}
