import { describe, expect, it } from "vitest"
import type { Json, JsonObject } from "../src/hub/fields"
import { conflicts, editable, intent } from "../src/hub/intent"
import { causeOf, managers, owned } from "../src/hub/owners"

const entry = (by: string, fieldsV1: JsonObject, operation = "Update", more: JsonObject = {}): JsonObject => ({
  manager: by,
  operation,
  apiVersion: "apps/v1",
  fieldsType: "FieldsV1",
  fieldsV1,
  ...more,
})

const container = { ".": {}, "f:image": {}, "f:name": {}, "f:args": {} }
const kubectl: JsonObject = {
  "f:metadata": { "f:labels": { ".": {}, "f:app": {} }, "f:finalizers": { 'v:"a"': {} } },
  "f:spec": {
    "f:replicas": {},
    "f:selector": {},
    "f:template": { "f:spec": { "f:containers": { 'k:{"name":"web"}': container, 'k:{"name":"side"}': container } } },
  },
}

function deployment(fields: JsonObject[] = [entry("kubectl", kubectl)]): JsonObject {
  const containers: Json[] = [
    { name: "web", image: "nginx:1", args: ["a", "b"] },
    { name: "side", image: "busybox", args: [] },
  ]
  return {
    apiVersion: "apps/v1",
    kind: "Deployment",
    metadata: {
      name: "web",
      namespace: "shop",
      resourceVersion: "7",
      uid: "u",
      labels: { app: "web" },
      finalizers: ["a"],
      managedFields: fields,
    },
    spec: {
      replicas: 2,
      selector: { matchLabels: { app: "web" } },
      strategy: { type: "RollingUpdate" },
      template: { spec: { containers } },
    },
    status: { readyReplicas: 2 },
  }
}

// biome-ignore lint/suspicious/noExplicitAny: tests reach into objects.
function edited(live: JsonObject, edit: (object: any) => void): JsonObject {
  const wanted = structuredClone(editable(live))
  edit(wanted)
  return wanted
}

describe("intent", () => {
  it("sends only the changed fields, with the names of list elements", () => {
    const live = deployment()
    const { method, body, foreign } = intent(
      live,
      edited(live, (o) => (o.spec.template.spec.containers[0].image = "nginx:2")),
    )
    expect(method).toBe("apply")
    expect(body).toEqual({
      apiVersion: "apps/v1",
      kind: "Deployment",
      metadata: { name: "web", namespace: "shop" },
      spec: { template: { spec: { containers: [{ name: "web", image: "nginx:2" }] } } },
    })
    expect(foreign.map((f) => [f.path, f.managers, f.live])).toEqual([["spec.template.spec.containers[name=web].image", ["kubectl"], "nginx:1"]])
  })

  it("sends lists and maps whole that are atomic or have no owner", () => {
    const live = deployment()
    const { body } = intent(
      live,
      edited(live, (o) => {
        o.spec.template.spec.containers[0].args[1] = "c"
        o.spec.selector.matchLabels.tier = "x"
        o.spec.strategy.rollingUpdate = { maxSurge: 1 }
      }),
    )
    expect(body.spec).toEqual({
      selector: { matchLabels: { app: "web", tier: "x" } },
      strategy: { type: "RollingUpdate", rollingUpdate: { maxSurge: 1 } },
      template: { spec: { containers: [{ name: "web", args: ["a", "c"] }] } },
    })
  })

  it("sends its earlier fields again, and removes a field by leaving it out", () => {
    const own = entry("orrery-console", { "f:metadata": { "f:labels": { "f:mine": {} } }, "f:spec": { "f:paused": {} } }, "Apply")
    const live = deployment([entry("kubectl", kubectl), own]) as {
      metadata: { labels: JsonObject }
      spec: JsonObject
    } & JsonObject
    live.metadata.labels.mine = "1"
    live.spec.paused = true
    const kept = intent(
      live,
      edited(live, (o) => (o.spec.replicas = 3)),
    )
    expect(kept.body).toMatchObject({ metadata: { labels: { mine: "1" } }, spec: { paused: true, replicas: 3 } })
    const gone = intent(
      live,
      edited(live, (o) => delete o.spec.paused),
    )
    expect(gone.method).toBe("apply")
    expect(gone.changes).toBe(true)
    expect(gone.body.spec).toBeUndefined()
  })

  it("removes fields of others by an update of exactly the state that was read", () => {
    const live = deployment()
    const { method, body, foreign } = intent(
      live,
      edited(live, (o) => o.spec.template.spec.containers.pop()),
    )
    expect(method).toBe("update")
    expect(body).toMatchObject({ metadata: { resourceVersion: "7", uid: "u" }, status: { readyReplicas: 2 } })
    expect(body.metadata).not.toHaveProperty("managedFields")
    expect(foreign.map((f) => [f.path, f.managers])).toEqual([["spec.template.spec.containers[name=side]", ["kubectl"]]])
  })

  it("adds to sets without taking them over", () => {
    const live = deployment()
    const { body, foreign } = intent(
      live,
      edited(live, (o) => o.metadata.finalizers.push("b")),
    )
    expect(body.metadata).toMatchObject({ finalizers: ["b"] })
    expect(foreign.map((f) => f.path)).toEqual(["metadata.finalizers"])
    expect(
      intent(
        live,
        edited(live, (o) => delete o.metadata.finalizers),
      ).method,
    ).toBe("update")
  })

  it("detects that nothing changed", () => {
    expect(intent(deployment(), editable(deployment()))).toMatchObject({ changes: false, foreign: [] })
  })

  it("reports for a conflict whether the field changed meanwhile", () => {
    const base = deployment()
    const live = deployment() as { spec: JsonObject } & JsonObject
    live.spec.replicas = 4
    const wanted = edited(base, (o) => {
      o.spec.replicas = 3
      o.metadata.labels.app = "x"
    })
    const found = conflicts(intent(live, wanted), editable(base), editable(live))
    expect(found.map((c) => [c.path, c.meanwhile, c.base, c.live, c.wanted])).toEqual([
      ["metadata.labels.app", false, "web", "web", "x"],
      ["spec.replicas", true, 2, 4, 3],
    ])
  })
})

describe("owners", () => {
  it("are found by some of the fields that identify an element", () => {
    const fields = { "f:ports": { 'k:{"containerPort":80,"protocol":"TCP"}': { "f:containerPort": {} } } }
    const root = owned({ apiVersion: "apps/v1", metadata: { managedFields: [entry("helm", fields)] } })
    expect(managers(root, ["ports", { containerPort: 80 }])).toEqual(["helm"])
    expect(managers(root, ["ports", { containerPort: 81 }])).toEqual([])
  })
  it("causeOf writes paths as API servers do", () => {
    expect(causeOf(["spec", "ports", { protocol: "TCP", containerPort: 80 }, "name"])).toBe('.spec.ports[containerPort=80,protocol="TCP"].name')
  })
})
