import { expect, test, vi } from "vitest"
import { append, at, fresh, labelLine, labels, oneOf, path, problems, put, remove, setOneOf, text, unseen } from "../src/policy/form"
import { leaving, type Move, type Moves, much } from "../src/policy/moves"

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

test("setting a field keeps all fields that the form does not know", () => {
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

test("an empty value removes the field and empty parents, but no element of a list", () => {
  const bare = put(put(policy, ["spec", "placement", "clusterAffinity", "clusterNames"], []), ["spec", "placement", "clusterAffinity", "exclude"], "")
  expect(at(bare, ["spec", "placement"])).toEqual({ futureField: { x: [1] } })
  expect(at(put({ l: [{ a: 1 }, { b: 2 }] }, ["l", 0, "a"], undefined), ["l"])).toEqual([{}, { b: 2 }])
})

test("0 and false are values", () => {
  expect(put({}, ["a", "b"], 0)).toEqual({ a: { b: 0 } })
  expect(put({}, ["a"], false)).toEqual({ a: false })
})

test("elements are added and removed", () => {
  const two = append(policy, ["spec", "resourceSelectors"], { kind: "Service" })
  expect(at(two, ["spec", "resourceSelectors", 1])).toEqual({ kind: "Service" })
  expect(remove(two, ["spec", "resourceSelectors"], 1)).toEqual(policy)
  expect(text(policy, ["spec", "nothing", 3, "here"])).toBe("")
})

test("the values of a field are added and removed, and other expressions stay", () => {
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

test("moves need a confirmation if many objects leave, one leaves its last cluster at once, or not all are known", () => {
  const move = (name: string, more: object): Move => ({ of: { kind: "ConfigMap", name }, ...more })
  const goes = (n: number) => Array.from({ length: n }, (_, i) => move(`${i}`, { clusters: [{ name: "oak", from: {} }] }))
  const moves = (items: Move[], more: Partial<Moves> = {}): Moves => ({ looked: 9, moving: items.length, exact: true, items, ...more })
  expect([moves([]), moves(goes(5)), moves(goes(6)), moves([], { exact: false })].map(much)).toEqual([false, false, true, true])
  expect(much(moves([move("a", { clusters: [], atOnce: true })]))).toBe(true)
  const comes = move("b", { clusters: [{ name: "oak", to: {} }] })
  // Unlisted moves count, unless the last listed one leaves no cluster.
  expect([moves(goes(1), { moving: 7 }), moves([...goes(1), comes], { moving: 7 }), moves([comes], { moving: 7, hidden: 6 })].map(leaving)).toEqual([7, 1, 6])
  expect(leaving(moves([move("c", { hidden: 2 })]))).toBe(2)
})

const lists = { verb: "list", everywhere: true }
const bind = (name: string, policy: string, more: object = {}) => ({
  metadata: { name, namespace: "shop" },
  spec: { resource: { apiVersion: "v1", kind: "Secret", name }, policyRef: { kind: "PropagationPolicy", name: policy }, clusters: [{ name: "oak", ...more }] },
})

/**
 * A hub with these answers, by prefixes of their paths. Modules are loaded again, because they
 * cache rights and kinds.
 */
async function hub(answers: Record<string, object | ((url: string, body: string) => object)>) {
  vi.resetModules()
  const asked: string[] = []
  vi.stubGlobal("fetch", async (url: string, o: RequestInit) => {
    asked.push(`${url.replace("/console/api/hub", "")} ${o.body ?? ""}`)
    const found = Object.entries(answers).find(([path]) => url.startsWith(`/console/api/hub${path}`))?.[1]
    const answer = typeof found === "function" ? found(url, String(o.body)) : found
    return new Response(JSON.stringify(answer ?? {}), { status: (answer as { code?: number })?.code ?? 200 })
  })
  return { ...(await import("../src/placement/bindings")), ...(await import("../src/policy/moves")), asked }
}

const work = "/apis/work.orrery.dev/v1alpha2"
const access = (...types: object[]) => ({ "/apis/fleet.orrery.dev/v1alpha1/access": { user: "ann", types } })

test("bindings are read to the last page, and marked as incomplete if the user may not list all", async () => {
  const pages = (url: string) =>
    url.includes("continue=next") ? { metadata: {}, items: [bind("b", "p")] } : { metadata: { continue: "next" }, items: [bind("a", "p")] }
  const group = "work.orrery.dev"
  const all = { group, resource: "resourcebindings", verbs: [lists] }
  const none = { metadata: {}, items: [] }
  let h = await hub({ ...access(all, { group, resource: "clusterresourcebindings", verbs: [lists] }), [`${work}/resourcebindings`]: pages, [work]: none })
  const bindings = await h.bindings()
  expect([bindings?.items.map((b) => b.metadata.name), bindings?.whole]).toEqual([["a", "b"], true])
  h = await hub({ ...access(all), [work]: none })
  expect(await h.bindings()).toEqual({ items: [], more: false, whole: false })
  h = await hub({ ...access({ group, resource: "resourcebindings", verbs: [{ verb: "list", namespaces: ["shop"] }] }), [work]: none })
  expect([(await h.bindings())?.whole, (await h.bindings("shop"))?.whole, await h.bindings("other")]).toEqual([false, true, undefined])
})

test("a preview that the hub cannot compute yet is an error, not an empty result", async () => {
  const preview = { looked: 1, moving: 0, exact: true }
  const path = "/apis/fleet.orrery.dev/v1alpha1/placementreviews"
  let h = await hub({ [path]: { status: { moves: preview } } })
  expect(await h.moves({ cluster: { name: "oak", leaves: true } })).toEqual(preview)
  expect(h.asked.at(-1)).toContain('"spec":{"moves":{"cluster":{"name":"oak","leaves":true}}}')
  // No taints is another question than none about taints.
  await h.moves({ cluster: { name: "oak", taints: [] } })
  expect(h.asked.at(-1)).toContain('"spec":{"moves":{"cluster":{"name":"oak","taints":[]}}}')
  h = await hub({ [path]: { status: { state: "Waiting", message: "ask again" } } })
  await expect(h.moves({ policy: { name: "p" } })).rejects.toThrow("ask again")
})
