import { expect, test } from "vitest"
import type { Explanation, Work } from "../src/placement/explained"
import { matrix, shortImage, sum } from "../src/placement/matrix"
import { groups, held, known, outdated, stand, texts } from "../src/why/why"

const work = (cluster: string, more: Partial<Work> = {}): Work => ({
  cluster,
  placed: true,
  state: "Present",
  health: "Healthy",
  ...more,
})

test.each<[string, Work, string]>([
  ["Well", work("a"), "good"],
  ["Drifted", work("a", { drift: [{ path: "spec.replicas" }] }), "warn"],
  ["Unhealthy", work("a", { health: "Unhealthy" }), "bad"],
  ["Refused", work("a", { result: { applied: false, current: true } }), "bad"],
  ["NotThere", work("a", { state: "Absent", health: "Unknown" }), "bad"],
  ["UnreachableIsUnknown", work("a", { state: "Unknown", health: "Unhealthy", result: { applied: false, current: true } }), "unknown"],
  ["LeftBehind", work("a", { placed: false, health: "Unhealthy" }), "plain"],
])("tone %s", (_, w, want) => {
  expect(matrix([w])[0]?.tone).toBe(want)
})

test("the last health of an unreachable cluster does not count", () => {
  const [row] = matrix([work("a", { state: "Unknown", wanted: 2, ready: 2 })])
  expect([row?.health, row?.replicas?.tone]).toEqual(["Unknown", "unknown"])
  expect(sum(matrix([work("a", { state: "Unknown" }), work("b")]))).toMatchObject({ clusters: 2, healthy: 1, unknown: 1 })
})

test("images that differ from the rendered ones, and from those of most clusters", () => {
  const rows = matrix([
    work("a", { images: [{ container: "web", wanted: "web:1", live: "web:0" }] }),
    work("b", { images: [{ container: "web", wanted: "web:1", live: "web:1" }] }),
    work("c", { images: [{ container: "web", wanted: "mirror/web:1", live: "mirror/web:1" }] }),
  ])
  expect(rows.map((r) => [r.images[0]?.differs, r.images[0]?.odd])).toEqual([
    [true, false],
    [false, false],
    [false, true],
  ])
  expect(shortImage("registry.example/team/web:1.2")).toBe("web:1.2")
  expect(shortImage(`web@sha256:${"0123456789abcdef".repeat(4)}`)).toBe("web@0123456789ab…")
})

test("unknown drift is not zero drift", () => {
  expect(matrix([work("a", { driftUnknown: "not read yet" })])[0]?.drift).toBeUndefined()
  expect(matrix([work("a")])[0]?.drift).toBe(0)
})

test("replicas are summed over the clusters in which the object is placed", () => {
  expect(sum(matrix([work("a", { wanted: 3, ready: 2 }), work("b", { wanted: 1, ready: 1 }), work("c", { placed: false, ready: 9 })]))).toMatchObject({
    clusters: 2,
    ready: 3,
    wanted: 4,
    counted: true,
  })
})

test("clusters are grouped by their state, those that nearly qualified first", () => {
  const out = { reason: "NotSelected", message: "" }
  const tainted = { reason: "Tainted", message: "" }
  const all = [
    { name: "z", placed: false, verdicts: [out] },
    { name: "y", placed: false, verdicts: [tainted] },
    { name: "x", placed: true },
    { name: "w", placed: true, verdicts: [tainted] },
    { name: "v", placed: true, leaves: true },
    { name: "u", placed: false },
  ]
  expect(all.map(stand)).toEqual(["out", "out", "placed", "stays", "leaving", "unknown"])
  expect(groups(all).map((g) => [g.stand, g.clusters.map((c) => c.name)])).toEqual([
    ["placed", ["x"]],
    ["stays", ["w"]],
    ["leaving", ["v"]],
    ["unknown", ["u"]],
    ["out", ["y", "z"]],
  ])
})

test("outdated names what changed since the decision", () => {
  const e: Explanation = {
    of: { apiVersion: "apps/v1", kind: "Deployment", name: "web", generation: 3 },
    state: "Placed",
    message: "",
    current: true,
    generation: 3,
  }
  expect(outdated(e)).toBeUndefined()
  expect(outdated({ ...e, current: false, generation: 2 })).toBe("object")
  expect(outdated({ ...e, current: false })).toBe("policy")
  expect(outdated({ ...e, decision: { time: "", current: false, reason: "" } })).toBe("decision")
  expect(outdated({ ...e, current: false, state: "Unclaimed" })).toBeUndefined()
})

test("a page about an object that is placed nowhere shows each sentence once", () => {
  const reason = "the policy selects no cluster of the fleet"
  const unknown = "UnknownCluster, no cluster of the fleet has this name: correct the policy, or join the cluster"
  const out = "clusterAffinity does not select it"
  const decided = `${reason}; maple: ${unknown}; birch: ${out}; oak-2: ${out}; oak: ${out}`
  const e: Explanation = {
    of: { apiVersion: "apps/v1", kind: "Deployment", name: "nowhere" },
    state: "Nowhere",
    message: `it is not placed in any cluster by PropagationPolicy infra/nowhere: ${decided}; its deletion waits`,
    current: true,
    decision: { time: "", current: true, reason: "NoClusterFits", message: decided },
    waits: [{ for: "Policy", message: decided }],
    clusters: [
      { name: "maple", placed: false, verdicts: [{ reason: "UnknownCluster", message: unknown }] },
      ...["birch", "oak", "oak-2"].map((name) => ({ name, placed: false, verdicts: [{ reason: "NotSelected", message: out }] })),
    ],
  }
  expect(texts(e)).toEqual({
    message: `it is not placed in any cluster by PropagationPolicy infra/nowhere: ${reason}; its deletion waits`,
    waits: [],
    outcome: "NoClusterFits",
  })
  const removal = { for: "Removal", message: "the cluster does not answer", clusters: ["oak"] }
  expect(texts({ ...e, message: "its placement is being removed", waits: [removal, { for: "Policy", message: reason }] })).toEqual({
    message: "its placement is being removed",
    waits: [removal, { for: "Policy", message: reason }],
    outcome: "NoClusterFits",
  })
  expect(texts({ ...e, message: "it is placed in 2 clusters", clusters: [], waits: [], decision: { ...e.decision!, message: "2 clusters" } }).outcome).toBe(
    "NoClusterFits: 2 clusters",
  )
  expect(texts({ ...e, message: "no policy places it, so it is on the hub only", clusters: undefined, waits: undefined, decision: undefined })).toEqual({
    message: "no policy places it, so it is on the hub only",
    waits: [],
    outcome: "",
  })
})

test("evictions that wait are read from the decision, and its other sentences stay", () => {
  const paused = "to leave oak because of taint disk=bad:NoExecute, waits: Paused (by ann: repair (rack 7), the log; see it)"
  const limited = "to leave elm because of taint down:NoExecute, waits: RateLimited ()"
  const of = { apiVersion: "apps/v1", kind: "Deployment", name: "web" }
  const decision = { time: "", current: true, reason: "Scheduled", message: `2 clusters; ${paused}; ${limited}; 1 more` }
  const e: Explanation = { of, state: "Placed", message: "it is placed in 2 clusters", current: true, decision }
  expect(held(e)).toEqual([
    { cluster: "oak", taint: "disk=bad:NoExecute", reason: "Paused", message: "by ann: repair (rack 7), the log; see it" },
    { cluster: "elm", taint: "down:NoExecute", reason: "RateLimited", message: "" },
  ])
  expect(texts(e).outcome).toBe("Scheduled: 2 clusters; 1 more")
  expect(held({ ...e, decision: undefined })).toEqual([])
  expect(texts({ ...e, decision: { ...decision, message: limited } }).outcome).toBe("Scheduled")
})

test("words of the API that have a text", () => {
  // The reasons of verdicts, and why evictions wait.
  expect(["Tainted", "Evicted", "StaysFenced", "ManyAtOnce", "NoReplacement"].every(known)).toBe(true)
  expect(["title", "Other", "constructor"].some(known)).toBe(false)
})
