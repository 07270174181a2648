import { afterEach, beforeEach, expect, test, vi } from "vitest"
import { append, at, fresh, labelLine, labels, oneOf, path, problems, put, remove, setOneOf, text, unseen } from "../src/policy/form"
import { Latest, type Told } from "../src/policy/latest"
import { changes, leaving, without } from "../src/policy/moves"

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

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

test("a preview asks once after a pause, and tells only the answer to the last question", async () => {
  const asked: string[] = []
  const answers = new Map<string, (a: string) => void>()
  const told: Told<string>[] = []
  const preview = new Latest<string, string>(
    (q) => {
      asked.push(q)
      return new Promise((resolve) => answers.set(q, resolve))
    },
    (t) => told.push(t),
  )
  preview.put("o")
  preview.put("oa")
  await vi.advanceTimersByTimeAsync(300)
  expect(asked).toEqual(["oa"])
  preview.put("oak")
  answers.get("oa")?.("late")
  await vi.advanceTimersByTimeAsync(300)
  answers.get("oak")?.("yes")
  await vi.advanceTimersByTimeAsync(0)
  expect(asked).toEqual(["oa", "oak"])
  expect(told.at(-1)).toEqual({ answer: "yes", stale: false })
  expect(told.some((t) => t.answer === "late")).toBe(false)
  preview.put("oak")
  expect(told.at(-1)?.stale).toBe(false)
  preview.again()
  answers.get("oak")?.("no longer")
  await vi.advanceTimersByTimeAsync(0)
  expect(asked).toEqual(["oa", "oak", "oak"])
  expect(told.at(-1)).toEqual({ answer: "no longer", stale: false })
})

test("a question that fails leaves the answer before it", async () => {
  const told: Told<string>[] = []
  const preview = new Latest<string, string>(
    (q) => (q === "bad" ? Promise.reject(new Error("no")) : Promise.resolve(q)),
    (t) => told.push(t),
  )
  preview.put("good")
  await vi.advanceTimersByTimeAsync(300)
  preview.put("bad")
  expect(told.at(-1)).toEqual({ answer: "good", stale: true })
  await vi.advanceTimersByTimeAsync(300)
  expect(told.at(-1)).toMatchObject({ answer: "good", stale: false, error: new Error("no") })
})

test("what moves is what differs by cluster, and nothing where it is not known", () => {
  const now = [
    { name: "oak", replicas: 2 },
    { name: "pine", replicas: 2 },
    { name: "elm", replicas: 1 },
  ]
  const then = [
    { name: "oak", placed: true, replicas: 2 },
    { name: "pine", placed: false },
    { name: "ash", placed: true, replicas: 2 },
  ]
  const moved = [
    { cluster: "ash", from: undefined, to: 2 },
    { cluster: "pine", from: 2, to: undefined },
  ]
  expect(changes(now, { time: "", state: "Placed", clusters: then, hidden: 1 })).toEqual(moved)
  expect(changes(now, { time: "", state: "Placed", clusters: then })[1]).toEqual({ cluster: "elm", from: 1, to: undefined })
  expect(changes([{ name: "oak" }], { time: "", state: "Placed", clusters: [{ name: "oak", placed: true }] })).toEqual([])
  expect(leaving([{ object: "a", changes: moved }, { object: "b" }, { object: "c", changes: [] }])).toBe(2)
})

test("a placement without a cluster keeps all else", () => {
  expect(without(policy.spec.placement, "oak")).toMatchObject({ clusterAffinity: { clusterNames: ["oak"], exclude: ["ash", "oak"] }, futureField: { x: [1] } })
  expect(without({ clusterAffinities: [{ affinityName: "a" }] }, "oak")).toEqual({ clusterAffinities: [{ affinityName: "a", exclude: ["oak"] }] })
  expect(without({}, "oak")).toEqual({ clusterAffinity: { exclude: ["oak"] } })
})
