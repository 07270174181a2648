import { describe, expect, it } from "vitest"
import { collapse, type Graph } from "../src/graph/collapse"
import { layout } from "../src/graph/layout"
import { authors, type Change, stepsOf } from "../src/history/steps"

const change = (time: string | undefined, kind: Change["change"] = "Updated", cluster = "oak"): Change => ({
  cluster,
  name: "web",
  uid: "u",
  change: kind,
  time,
})

describe("stepsOf", () => {
  it("sorts by time, groups changes of one moment, and puts changes without a time first", () => {
    const steps = stepsOf([
      change("2026-01-01T00:00:10.000000Z", "Deleted"),
      change("2026-01-01T00:00:05.000000Z"),
      change("2026-01-01T00:00:05.000000Z", "Updated", "elm"),
      change(undefined, "Seen"),
      change("2026-01-01T00:00:00.000000Z"),
    ])
    expect(steps.map((s) => [s.time.slice(17, 19), s.changes.length, s.there])).toEqual([
      ["", 1, true],
      ["00", 1, true],
      ["05", 2, true],
      ["10", 1, false],
    ])
  })
  it("names authors once", () => {
    expect(authors({ ...change("x"), by: [{ manager: "a" }, { manager: "a" }, { manager: "b", subresource: "status" }] })).toBe("a, b (status)")
  })
})

function owner(pods: number): Graph {
  const nodes = [
    { kind: "ReplicaSet", name: "web" },
    { kind: "Service", name: "web" },
  ]
  const edges: Graph["edges"] = []
  for (let i = 0; i < pods; i++) {
    nodes.push({ kind: "Pod", name: `web-${i}` })
    edges.push({ from: 0, to: i + 2, relation: "owner" }, { from: 1, to: i + 2, relation: "selector" })
  }
  return { roots: [0], nodes, edges }
}

describe("collapse", () => {
  it("leaves small graphs alone", () => {
    expect(collapse(owner(10)).graph.nodes).toHaveLength(12)
  })
  it("replaces the pods of an owner by one node", () => {
    const { graph, left } = collapse(owner(600))
    expect(left).toBe(0)
    expect(graph.nodes.map((n) => [n.kind, n.name, n.count])).toEqual([
      ["ReplicaSet", "web", undefined],
      ["Service", "web", undefined],
      ["Pod", "", 600],
    ])
    expect(graph.edges).toHaveLength(2)
  })
  it("keeps the nodes nearest to the roots if there are still too many", () => {
    const chain: Graph = { roots: [0], nodes: [], edges: [] }
    for (let i = 0; i < 20; i++) chain.nodes.push({ kind: "ConfigMap", name: `c${i}` })
    for (let i = 1; i < 20; i++) chain.edges.push({ from: i - 1, to: i, relation: "owner" })
    const { graph, left } = collapse(chain, 5)
    expect([graph.nodes.map((n) => n.name), graph.edges.length, left]).toEqual([["c0", "c1", "c2", "c3", "c4"], 4, 15])
  })
})

it("layout puts a used object to the right of its users", () => {
  const points = layout(owner(3))
  expect(points).toHaveLength(5)
  expect(points[2]!.x).toBeGreaterThan(points[0]!.x)
})
