import { expect, test } from "vitest"
import { append, at, fresh, labelLine, labels, oneOf, path, problems, put, remove, setOneOf, text, unseen } from "../src/policy/form"
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
