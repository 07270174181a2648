import { expect, test, vi } from "vitest"
import { append, at, fresh, labelLine, labels, oneOf, path, problems, put, remove, setOneOf, text, unseen } from "../src/policy/form"
import { answered, changes, leaving, type Move, much, without } from "../src/policy/moves"

const policy = {
  apiVersion: "policy.orrery.dev/v1alpha1",
  kind: "PropagationPolicy",
  metadata: { name: "web", namespace: "shop", resourceVersion: "7", managedFields: [{}], labels: { a: "b" } },
  spec: {
    resourceSelectors: [{ apiVersion: "apps/v1", kind: "Deployment", someFutureField: 1 }],
    placement: { clusterAffinity: { clusterNames: ["oak"], exclude: ["ash"] }, futureField: { x: [1] } },
    futurePart: true,
  },
  status: { claimed: 1 },
}

test("a field that is put leaves everything that the form does not know", () => {
  const next = put(policy, ["spec", "placement", "clusterAffinity", "clusterNames"], ["pine"])
  expect(next).toEqual({
    ...policy,
    spec: {
      ...policy.spec,
      placement: { ...policy.spec.placement, clusterAffinity: { clusterNames: ["pine"], exclude: ["ash"] } },
    },
  })
  expect(policy.spec.placement.clusterAffinity.clusterNames).toEqual(["oak"])
})

test("nothing takes a field away, and what is empty then, but no element of a list", () => {
  const bare = put(put(policy, ["spec", "placement", "clusterAffinity", "clusterNames"], []), ["spec", "placement", "clusterAffinity", "exclude"], "")
  expect(at(bare, ["spec", "placement"])).toEqual({ futureField: { x: [1] } })
  expect(at(put({ l: [{ a: 1 }, { b: 2 }] }, ["l", 0, "a"], undefined), ["l"])).toEqual([{}, { b: 2 }])
})

test("0 and false are values", () => {
  expect(put({}, ["a", "b"], 0)).toEqual({ a: { b: 0 } })
  expect(put({}, ["a"], false)).toEqual({ a: false })
})

test("elements come and go", () => {
  const two = append(policy, ["spec", "resourceSelectors"], { kind: "Service" })
  expect(at(two, ["spec", "resourceSelectors", 1])).toEqual({ kind: "Service" })
  expect(remove(two, ["spec", "resourceSelectors"], 1)).toEqual(policy)
  expect(text(policy, ["spec", "nothing", 3, "here"])).toBe("")
})

test("a field's values come and go, other expressions stay", () => {
  const other = { key: "zone", operator: "NotIn", values: ["a"] }
  const affinity = { fieldSelector: { matchExpressions: [other] }, labelSelector: { matchExpressions: [{}] } }
  const some = setOneOf(affinity, "region", ["eu", "us"])
  expect(oneOf(some, "region")).toEqual(["eu", "us"])
  expect(oneOf(setOneOf(some, "region", ["ap"]), "region")).toEqual(["ap"])
  expect(setOneOf(some, "region", [])).toEqual(affinity)
  expect(setOneOf({}, "region", [])).toEqual({})
  expect(unseen(some)).toBe(2)
})

test("labels in one line, and back", () => {
  expect(labels("env=prod, tier = web")).toBeUndefined()
  expect(labels("env=prod, empty=")).toEqual({ env: "prod", empty: "" })
  expect(labelLine({ env: "prod", empty: "" })).toBe("env=prod, empty=")
})

test("problems name the field", () => {
  expect(problems("PropagationPolicy", fresh("PropagationPolicy", "shop"))).toEqual([{ path: ["metadata", "name"], key: "needsName" }])
  expect(problems("PropagationPolicy", policy)).toEqual([])
  const both = put(policy, ["spec", "placement", "clusterAffinities"], [{ clusterNames: ["oak"] }])
  expect(problems("PropagationPolicy", both).map((p) => p.key)).toEqual(["bothAffinities", "needsGroupName"])
  expect(problems("OverridePolicy", { metadata: { name: "x" }, spec: {} }).map((p) => p.key)).toEqual(["needsRule"])
})

test("paths", () => {
  expect(path("PropagationPolicy", "shop", "web")).toBe("/apis/policy.orrery.dev/v1alpha1/namespaces/shop/propagationpolicies/web")
  expect(path("ClusterOverridePolicy", "shop")).toBe("/apis/policy.orrery.dev/v1alpha1/clusteroverridepolicies")
})

test("what moves is what differs by cluster, and nothing where it is not known", () => {
  const now = ["elm", "oak", "pine"].map((name) => ({ name, replicas: 2 }))
  const clusters = ["ash", "oak"].map((name) => ({ name, placed: true, replicas: 2 }))
  const told = (hidden: number) => changes(now, { time: "", state: "Placed", clusters: [...clusters, { name: "pine", placed: false }], hidden })
  expect(told(1).map((c) => [c.cluster, c.from, c.to])).toEqual([
    ["ash", undefined, 2],
    ["pine", 2, undefined],
  ])
  expect(told(0).map((c) => c.cluster)).toEqual(["ash", "elm", "pine"])
  expect(changes([{ name: "oak" }], { time: "", state: "Placed", clusters: [{ name: "oak", placed: true }] })).toEqual([])
  expect(leaving([{ object: "a", changes: told(0) }, { object: "b" }])).toBe(3)
})

test("a placement without a cluster keeps all else", () => {
  expect(without(policy.spec.placement, "oak")).toMatchObject({ clusterAffinity: { clusterNames: ["oak"], exclude: ["ash", "oak"] }, futureField: { x: [1] } })
  expect(without({ clusterAffinities: [{ affinityName: "a" }] }, "oak")).toEqual({ clusterAffinities: [{ affinityName: "a", exclude: ["oak"] }] })
  expect(without({}, "oak")).toEqual({ clusterAffinity: { exclude: ["oak"] } })
})

test("what no cluster is left for goes at once, unless something waits", () => {
  const nowhere = (leaves: boolean) =>
    answered([{ name: "oak" }], { time: "", state: "Nowhere", message: "none", clusters: [{ name: "oak", placed: false, leaves }] })
  expect(nowhere(false)).toMatchObject({ atOnce: true, message: "none" })
  expect(nowhere(true).atOnce).toBe(false)
  expect(answered([], { time: "", state: "Nowhere" }).atOnce).toBe(false)
  expect(answered([{ name: "oak" }], { time: "", state: "Waiting", message: "soon" })).toEqual({ message: "soon" })
})

test("much is what takes many out, all of one at once, or is not known", () => {
  const goes = (n: number): Move[] => Array.from({ length: n }, (_, i) => ({ object: `${i}`, changes: [{ cluster: "oak", from: true }] }))
  const told = (moves: Move[], whole = true) => much({ moves, whole, following: 0 })
  expect([told([]), told(goes(5)), told(goes(6)), told([], false), much(undefined)]).toEqual([false, false, true, true, true])
  expect(told([{ object: "a", changes: [{ cluster: "oak", from: true }], atOnce: true }])).toBe(true)
})

const lists = { verb: "list", everywhere: true }
const bind = (name: string, policy: string, more: object = {}) => ({
  metadata: { name, namespace: "shop" },
  spec: { resource: { apiVersion: "v1", kind: "Secret", name }, policyRef: { kind: "PropagationPolicy", name: policy }, clusters: [{ name: "oak", ...more }] },
})

/** A hub that has these answers, by the beginnings of their paths; anew, for rights and kinds are kept. */
async function hub(answers: Record<string, object | ((url: string, body: string) => object)>) {
  vi.resetModules()
  const asked: string[] = []
  vi.stubGlobal("fetch", async (url: string, o: RequestInit) => {
    asked.push(`${url.replace("/console/api/hub", "")} ${o.body ?? ""}`)
    const found = Object.entries(answers).find(([path]) => url.startsWith(`/console/api/hub${path}`))?.[1]
    const answer = typeof found === "function" ? found(url, String(o.body)) : found
    return new Response(JSON.stringify(answer ?? {}), { status: (answer as { code?: number })?.code ?? 200 })
  })
  return { ...(await import("../src/policy/moves")), asked }
}

const work = "/apis/work.orrery.dev/v1alpha2"
const access = (...types: object[]) => ({ "/apis/fleet.orrery.dev/v1alpha1/access": { user: "ann", types } })

test("bindings are read to their last page, and what somebody may not list makes them a part", async () => {
  const pages = (url: string) =>
    url.includes("continue=next") ? { metadata: {}, items: [bind("b", "p")] } : { metadata: { continue: "next" }, items: [bind("a", "p")] }
  const group = "work.orrery.dev"
  const all = { group, resource: "resourcebindings", verbs: [lists] }
  const none = { metadata: {}, items: [] }
  let h = await hub({ ...access(all, { group, resource: "clusterresourcebindings", verbs: [lists] }), [`${work}/resourcebindings`]: pages, [work]: none })
  const told = await h.bindings()
  expect([told?.items.map((b) => b.metadata.name), told?.whole]).toEqual([["a", "b"], true])
  h = await hub({ ...access(all), [work]: none })
  expect(await h.bindings()).toEqual({ items: [], more: false, whole: false })
  h = await hub({ ...access({ group, resource: "resourcebindings", verbs: [{ verb: "list", namespaces: ["shop"] }] }), [work]: none })
  expect([(await h.bindings())?.whole, (await h.bindings("shop"))?.whole, await h.bindings("other")]).toEqual([false, true, undefined])
})

test("what may not be read, is gone, or follows others hides nothing of what moves", async () => {
  const types = [
    { group: "work.orrery.dev", resource: "resourcebindings", verbs: [lists] },
    { group: "policy.orrery.dev", resource: "propagationpolicies", verbs: [{ verb: "create", namespaces: ["shop"] }] },
  ]
  const items = [bind("refused", "p"), bind("gone", "p"), bind("moves", "p"), bind("other", "q"), bind("follows", "p", { attached: true })]
  const h = await hub({
    ...access(...types),
    [work]: { metadata: {}, items },
    "/apis/fleet.orrery.dev/v1alpha1/placementreviews": (_, body) =>
      body.includes("gone")
        ? { kind: "Status", code: 404, message: "it is gone" }
        : { status: { state: "Placed", clusters: [{ name: "pine", placed: true }] } },
    "/apis/authorization.k8s.io": (_, body) => ({ status: { allowed: !body.includes("refused") } }),
    "/apis": { items: [] },
    "/api": {
      items: [{ metadata: {}, versions: [{ version: "v1", resources: [{ resource: "secrets", scope: "Namespaced", responseKind: { kind: "Secret" } }] }] }],
    },
  })
  const told = await h.moves({ namespace: "shop", has: (b) => b.spec.policyRef.name === "p", placement: () => ({}) })
  expect(told).toMatchObject({ whole: true, following: 1 })
  expect(told?.moves.map((m) => [m.object, m.message, m.changes?.map((c) => c.cluster)])).toEqual([
    ["Secret shop/gone", "it is gone", undefined],
    ["Secret shop/moves", undefined, ["oak", "pine"]],
    ["Secret shop/refused", undefined, undefined],
  ])
  expect(h.asked.some((a) => a.includes("placementreviews") && a.includes("refused"))).toBe(false)
})
