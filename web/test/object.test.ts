import { describe, expect, it } from "vitest"
import type { Obj } from "../src/hub/client"
import { bytesOf, conditionsOf, containersOf, decode, missingKind, plain, podsOf, scalarsOf, stateOf, summary } from "../src/object/object"
import { below, type Document, fieldsOf, placeAt, resolved, schemaOf, valuesOf } from "../src/object/schema"
import en from "../src/text/en"
import zh from "../src/text/zh"

const object = (kind: string, more: object, apiVersion = "v1"): Obj => ({ apiVersion, kind, metadata: { name: "web" }, ...more }) as Obj

describe("conditionsOf", () => {
  it("knows which conditions are bad when True, and ignores invalid ones", () => {
    const conditions = [{ type: "Ready", status: "False", reason: "X" }, { type: "DiskPressure", status: "True" }, { type: "Odd", status: "Unknown" }, "no", {}]
    const node = object("Node", { status: { conditions } })
    expect(conditionsOf(node).map((c) => [c.type, c.tone])).toEqual([
      ["Ready", "bad"],
      ["DiskPressure", "bad"],
      ["Odd", "unknown"],
    ])
    expect(summary(node)?.reason).toBe("X")
    expect(conditionsOf(object("X", {}))).toEqual([])
    expect(conditionsOf(object("X", { status: "text" }))).toEqual([])
  })
})

describe("podsOf", () => {
  it("finds the pods of any kind with a selector", () => {
    expect(podsOf(object("Pod", {}))).toEqual({ labels: "", fields: "metadata.name=web" })
    expect(podsOf(object("Service", { spec: { selector: { app: "a", b: "c" } } }))).toEqual({ labels: "app=a,b=c" })
    const selector = {
      matchLabels: { app: "a" },
      matchExpressions: [
        { key: "x", operator: "In", values: ["1", "2"] },
        { key: "y", operator: "DoesNotExist" },
      ],
    }
    const spec = { selector, template: { spec: { containers: [] } } }
    expect(podsOf(object("Rollout", { spec }, "argoproj.io/v1alpha1"))).toEqual({ labels: "app=a,x in (1,2),!y" })
    expect(podsOf(object("Service", { spec: {} }))).toBeUndefined()
    expect(podsOf(object("ConfigMap", {}))).toBeUndefined()
  })
})

it("plain returns the object as in its cluster", () => {
  const annotations = { a: "b", "fleet.orrery.dev/cluster": "oak", "fleet.orrery.dev/resource-version": "7" }
  expect(plain({ ...object("Pod", {}), metadata: { name: "web", resourceVersion: "9", annotations } }).metadata).toEqual({
    name: "web",
    resourceVersion: "7",
    annotations: { a: "b" },
  })
})

it("containersOf joins specs and statuses", () => {
  const status = {
    containerStatuses: [
      {
        name: "a",
        ready: false,
        restartCount: 4,
        state: { waiting: { reason: "CrashLoopBackOff" } },
        lastState: { terminated: { reason: "Error", exitCode: 2 } },
      },
    ],
  }
  const pod = object("Pod", {
    spec: {
      containers: [{ name: "a", image: "x", ports: [{ containerPort: 80 }] }],
      initContainers: [{ name: "i", image: "y" }],
    },
    status,
  })
  expect(containersOf(pod)).toEqual([
    { name: "i", image: "y", init: true, state: "", notStarted: true, ready: undefined, restarts: 0, ports: "", last: "" },
    { name: "a", image: "x", init: false, state: "CrashLoopBackOff", notStarted: false, ready: false, restarts: 4, ports: "80/TCP", last: "Error (2)" },
  ])
})

it("containersOf distinguishes a container that is not started from one whose state is unknown", () => {
  const spec = { containers: [{ name: "a" }], ephemeralContainers: [{ name: "e" }] }
  const notStarted = (status?: object) => containersOf(object("Pod", { spec, status })).map((c) => c.notStarted)
  expect(notStarted()).toEqual([true, true])
  expect(notStarted({ phase: "Pending" })).toEqual([true, true])
  expect(notStarted({ phase: "Failed", reason: "NodeAffinity" })).toEqual([true, true])
  expect(notStarted({ phase: "Running" })).toEqual([false, true])
  expect(notStarted({ phase: "Unknown" })).toEqual([false, false])
})

describe("stateOf", () => {
  const row = (...pairs: [string, unknown][]) => ({ columns: pairs.map(([name]) => ({ name, type: "string" })), cells: pairs.map(([, cell]) => cell) })
  const pod = (status: object) => object("Pod", { status })
  it("gives every Pod a state, also before it is scheduled", () => {
    const unscheduled = pod({ phase: "Pending", conditions: [{ type: "PodScheduled", status: "False", reason: "Unschedulable", message: "0/1 nodes" }] })
    expect(stateOf(unscheduled, row(["Ready", "0/1"], ["Status", "Pending"]))).toEqual({ word: "Pending: Unschedulable", message: "0/1 nodes", tone: "warn" })
    expect(stateOf(unscheduled)?.word).toBe("Pending: Unschedulable")
    expect(stateOf(object("Pod", {}))?.word).toBe("Pending")
    const ready = (status: string, reason = "") => [{ type: "Ready", status, reason }]
    const broken = pod({ phase: "Running", conditions: ready("False", "ContainersNotReady") })
    expect(stateOf(broken, row(["Status", "CrashLoopBackOff"]))).toMatchObject({ word: "CrashLoopBackOff", tone: "bad" })
    expect(stateOf(broken, row(["Status", "Running"]))).toMatchObject({ word: "Ready: ContainersNotReady", tone: "bad" })
    expect(stateOf(pod({ phase: "Succeeded", conditions: ready("False", "PodCompleted") }), row(["Status", "Completed"]))).toMatchObject({ tone: "good" })
    expect(stateOf(pod({ phase: "Failed", reason: "Evicted", message: "disk" }))).toEqual({ word: "Evicted", message: "disk", tone: "bad" })
  })
  it("uses the printed status or the phase for kinds without a summary condition", () => {
    const failed = object("Job", { status: { conditions: [{ type: "Failed", status: "True" }] } }, "batch/v1")
    expect(stateOf(failed, row(["Status", "Failed"]))).toMatchObject({ word: "Failed", tone: "bad" })
    expect(stateOf(object("PersistentVolumeClaim", { status: { phase: "Pending" } }))).toMatchObject({ word: "Pending" })
    const certificate = object("Certificate", { status: { conditions: [{ type: "Ready", status: "False", reason: "Issuing" }] } }, "cert-manager.io/v1")
    expect(stateOf(certificate, row(["Status", "Issuing certificate as Secret was missing"]))?.word).toBe("Ready: Issuing")
    expect(stateOf(object("ConfigMap", {}), row(["Status", "<none>"]))).toBeUndefined()
  })
})

it("values of Secrets are decoded only if they are text", () => {
  expect([decode("aGFsbG8="), decode("/w=="), decode("%")]).toEqual(["hallo", undefined, undefined])
  expect(bytesOf("aGFsbG8=")).toBe(5)
  expect(scalarsOf({ a: 1, b: { c: 1 }, d: ["x", "y"], e: [{}] })).toEqual([
    ["a", "1"],
    ["d", "x, y"],
  ])
})

const doc: Document = {
  components: {
    schemas: {
      Deployment: {
        "x-kubernetes-group-version-kind": [{ group: "apps", version: "v1", kind: "Deployment" }],
        properties: {
          spec: { allOf: [{ $ref: "#/components/schemas/Spec" }], description: "what is wanted" },
          metadata: { type: "object" },
        },
      },
      Spec: {
        type: "object",
        required: ["containers"],
        properties: {
          containers: { type: "array", items: { $ref: "#/components/schemas/Container" } },
          labels: { type: "object", additionalProperties: { type: "string" } },
          paused: { type: "boolean" },
        },
      },
      Container: {
        type: "object",
        properties: { name: { type: "string" }, pull: { type: "string", enum: ["Always", "Never"] } },
      },
      Loop: { $ref: "#/components/schemas/Loop" },
    },
  },
}

describe("schema", () => {
  const schema = schemaOf(doc, "apps", "v1", "Deployment")
  it("resolves references, lists and maps", () => {
    expect(fieldsOf(doc, below(doc, schema, ["spec"])).map((f) => [f.label, f.type, f.required])).toEqual([
      ["containers", "array", true],
      ["labels", "map", false],
      ["paused", "boolean", false],
    ])
    expect(valuesOf(below(doc, schema, ["spec", "containers", "[]", "pull"]))).toEqual(["Always", "Never"])
    expect(valuesOf(below(doc, schema, ["spec", "paused"]))).toEqual(["true", "false"])
    expect(below(doc, schema, ["spec", "constructor"])).toBeUndefined()
    expect(resolved(doc, { $ref: "#/components/schemas/Loop" })).toBeUndefined()
  })
})

describe("placeAt", () => {
  const place = (text: string) => placeAt(text.replace("|", ""), text.indexOf("|"))
  it("finds the field at a position in incomplete text", () => {
    expect(place("sp|")).toEqual({ path: [], key: "", value: false })
    expect(place("spec:\n  rep|")).toMatchObject({ path: ["spec"], value: false })
    expect(place("spec:\n  paused: t|")).toMatchObject({ path: ["spec", "paused"], value: true })
    expect(place("spec:\n  containers:\n    - na|")).toMatchObject({ path: ["spec", "containers", "[]"] })
    expect(place("spec:\n  containers:\n    - name: a\n      pull: |")).toMatchObject({
      path: ["spec", "containers", "[]", "pull"],
      value: true,
    })
    expect(place("spec:\n  containers:\n  - name: a\n    pu|")).toMatchObject({ path: ["spec", "containers", "[]"] })
    expect(place("spec:\n  containers:\n  - name: a\n  - na|")).toMatchObject({ path: ["spec", "containers", "[]"] })
    expect(place("spec:\n  template:\n    metadata:\n      labels:\n        a: b\n    spec:\n\n      # note\n      con|")).toMatchObject({
      path: ["spec", "template", "spec"],
    })
    expect(place("metadata:\n  name: x\nspec:\n  |")).toMatchObject({ path: ["spec"] })
  })
})

it("says of a missing kind whether the hub or the clusters do not serve it", () => {
  expect(missingKind("")).toBe("object.noKindHub")
  expect(missingKind("oak")).toBe("object.noKindMore")
  for (const texts of [en, zh]) expect(texts.object.noKindHub).not.toBe(texts.object.noKindMore)
})
