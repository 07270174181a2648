import { afterEach, describe, expect, it, vi } from "vitest"
import { Exists, review, send, theirs } from "../src/hub/apply"
import type { Obj } from "../src/hub/client"
import { editable } from "../src/hub/intent"

const live = {
  apiVersion: "apps/v1",
  kind: "Deployment",
  metadata: {
    name: "web",
    namespace: "shop",
    resourceVersion: "7",
    managedFields: [
      {
        manager: "kubectl",
        operation: "Update",
        apiVersion: "apps/v1",
        fieldsV1: { "f:spec": { "f:replicas": {}, "f:paused": {} } },
      },
    ],
  },
  spec: { replicas: 4, paused: false },
} as unknown as Obj

const base = editable({ ...live, spec: { replicas: 2, paused: false } } as never)
const text = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  namespace: shop\nspec:\n  replicas: 2\n  paused: true\n"
const conflict = {
  kind: "Status",
  code: 409,
  reason: "Conflict",
  message: "Apply failed with 1 conflict",
  details: {
    causes: [{ reason: "FieldManagerConflict", message: 'conflict with "kubectl" using apps/v1', field: ".spec.paused" }],
  },
}

type Call = { method: string; query: URLSearchParams; body?: Obj }

function hub(answer: (call: Call) => [number, object]): Call[] {
  const calls: Call[] = []
  vi.stubGlobal("fetch", async (url: string, o: RequestInit) => {
    const call = {
      method: o.method ?? "GET",
      query: new URL(url, "http://x").searchParams,
      body: o.body ? JSON.parse(String(o.body)) : undefined,
    }
    calls.push(call)
    const [status, body] = answer(call)
    return new Response(JSON.stringify(body), { status })
  })
  return calls
}

afterEach(() => vi.unstubAllGlobals())

describe("review", () => {
  it("merges, sends a dry run without force, and returns the conflicts; a forced apply carries the resourceVersion that was shown", async () => {
    const calls = hub((call) => (call.method === "GET" ? [200, live] : call.query.get("force") ? [200, live] : [409, conflict]))
    const found = await review({ path: "/x", text, base })
    expect(found.taken.map((d) => d.path)).toEqual(["spec.replicas"])
    expect(found.edit.text).toContain("replicas: 4")
    expect(found.conflicts.map((c) => [c.path, c.managers, c.live, c.wanted])).toEqual([["spec.paused", ["kubectl"], false, true]])
    expect(calls.slice(1).every((c) => c.query.get("dryRun") === "All" && c.query.get("fieldValidation") === "Strict")).toBe(true)
    await send(found, { force: true })
    expect(calls.at(-1)?.query.get("dryRun")).toBeNull()
    expect(calls.at(-1)?.body).toEqual({
      apiVersion: "apps/v1",
      kind: "Deployment",
      metadata: { name: "web", namespace: "shop", resourceVersion: "7" },
      spec: { paused: true },
    })
  })
  it("with the other manager's value chosen, nothing changes", async () => {
    hub((call) => (call.method === "GET" ? [200, live] : [409, conflict]))
    const found = await review({ path: "/x", text, base })
    const again = await review(theirs(found, found.conflicts[0]!))
    expect(again.intent.changes).toBe(false)
  })
  it("returns the refusal of the API server", async () => {
    hub((call) => (call.method === "GET" ? [200, live] : [422, { kind: "Status", code: 422, message: "invalid" }]))
    expect((await review({ path: "/x", text, base })).refusal?.code).toBe(422)
  })
  it("does not overwrite an existing object with a new one", async () => {
    hub(() => [200, live])
    await expect(review({ path: "/x", text })).rejects.toBeInstanceOf(Exists)
  })
  it("does not create an object again that was deleted while it is edited", async () => {
    const calls = hub(() => [404, { kind: "Status", code: 404, message: "not found" }])
    await expect(review({ path: "/x", text, base })).rejects.toMatchObject({ code: 404 })
    expect(calls).toHaveLength(1)
  })
})
