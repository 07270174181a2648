import { describe, expect, it } from "vitest"
import type { JsonObject } from "../src/hub/fields"
import { fieldPath, locate, merge, put, read, refused } from "../src/object/merge"

const text = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web # the shop
spec:
  replicas: 2
  containers:
    - name: web
      image: nginx:1
    - name: side
      image: busybox
`
const base = read(text).object as JsonObject

// biome-ignore lint/suspicious/noExplicitAny: tests reach into objects.
function changed(edit: (object: any) => void): JsonObject {
  const out = structuredClone(base)
  edit(out)
  return out
}

describe("merge", () => {
  it("takes over fields that only others changed, and keeps the user's comments", () => {
    const mine = text.replace("replicas: 2", "replicas: 3 # more")
    const theirs = changed((o) => {
      o.spec.containers[1].image = "busybox:2"
      o.spec.containers.push({ name: "new", image: "x" })
      o.metadata.labels = { a: "b" }
    })
    const merged = merge(mine, base, theirs)
    expect(merged.clashes).toEqual([])
    expect(merged.taken.map((d) => d.path)).toEqual(["metadata.labels", "spec.containers[name=side].image", "spec.containers[name=new]"])
    expect(merged.text).toContain("replicas: 3 # more")
    expect(merged.text).toContain("name: web # the shop")
    expect(read(merged.text).object).toMatchObject({
      metadata: { labels: { a: "b" } },
      spec: { replicas: 3, containers: [{ name: "web" }, { image: "busybox:2" }, { name: "new" }] },
    })
  })
  it("keeps the user's value of a field that both changed, and reports a clash", () => {
    const merged = merge(
      text.replace("replicas: 2", "replicas: 3"),
      base,
      changed((o) => (o.spec.replicas = 5)),
    )
    expect(merged.clashes).toEqual([{ path: "spec.replicas", steps: ["spec", "replicas"], base: 2, mine: 3, theirs: 5 }])
    expect(read(merged.text).object).toMatchObject({ spec: { replicas: 3 } })
  })
  it("has no clash where both made the same change", () => {
    expect(
      merge(
        text.replace("replicas: 2", "replicas: 5"),
        base,
        changed((o) => (o.spec.replicas = 5)),
      ).clashes,
    ).toEqual([])
  })
  it("reports one clash for an element that the user removed and others changed in two places", () => {
    const mine = text.replace("    - name: side\n      image: busybox\n", "")
    const theirs = changed((o) => Object.assign(o.spec.containers[1], { image: "b:2", args: ["x"] }))
    const { clashes } = merge(mine, base, theirs)
    expect(clashes.map((c) => [c.path, c.mine])).toEqual([["spec.containers[name=side]", undefined]])
  })
  it("takes over a removal, and removes maps that it leaves empty", () => {
    const with_ = changed((o) => (o.metadata.labels = { a: "b" }))
    const merged = merge(text.replace("  name: web #", "  labels:\n    a: b\n  name: web #"), with_, base)
    expect(read(merged.text).object).toEqual(base)
  })
})

describe("put", () => {
  it("sets a field of an element that does not exist yet", () => {
    const out = put(text, [{ steps: ["spec", "containers", { name: "third" }, "image"], value: "x" }])
    expect(read(out).object).toMatchObject({ spec: { containers: [{}, {}, { name: "third", image: "x" }] } })
  })
})

describe("read", () => {
  it("reports errors with their positions", () => {
    const [problem] = read("a: 1\na: 2\n").problems
    expect(problem?.message).toMatch(/unique/i)
    expect(problem?.from).toBe(5)
    expect(read("- a\n").problems).toHaveLength(1)
    expect(read("a: [").problems.length).toBeGreaterThan(0)
  })
  it("refuses a text that expands without limit", () => {
    const bomb = `a: &a [x,x,x,x,x,x,x,x,x]\n${"bcdefgh"
      .split("")
      .map((k, i) => `${k}: &${k} [${`*${"abcdefgh"[i]},`.repeat(9).slice(0, -1)}]`)
      .join("\n")}\n`
    expect(read(bomb).object).toBeUndefined()
    expect(read(bomb).problems).toHaveLength(1)
  })
  it("treats hostile keys as ordinary keys", () => {
    const { object } = read('__proto__: {polluted: true}\nname: "<script>"\n')
    expect(Object.hasOwn(object as object, "__proto__")).toBe(true)
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
  })
})

it("fieldPath parses paths as API servers write them", () => {
  expect(fieldPath('.spec.ports[containerPort=80,protocol="TCP"].name')).toEqual(["spec", "ports", { containerPort: 80, protocol: "TCP" }, "name"])
  expect(fieldPath("spec.containers[1].image")).toEqual(["spec", "containers", 1, "image"])
})

describe("a refusal of an API server", () => {
  const at = (message: string, field?: string) => {
    const status = { code: 422, reason: "Invalid", message, details: field ? { causes: [{ field, message: "no" }] } : undefined }
    return refused(status).map(({ path }) => {
      const { from, to } = locate(text, path)
      return text.slice(from, to).trim()
    })
  }
  it("is located in the text: by its causes, by unknown fields in its message, or else at the nearest parent", () => {
    expect(at("is invalid", "spec.replicas")).toEqual(["2"])
    expect(at("is invalid", "spec.containers[1].image")).toEqual(["busybox"])
    expect(at('strict decoding error: unknown field "spec.replicas", duplicate field "metadata.name"')).toEqual(["2", "web"])
    expect(at(".spec.replicas: field not declared in schema")).toEqual(["2"])
    expect(at("is invalid", "metadata.labels")[0]).toMatch(/^name: web/)
    expect(at("somebody else says no")).toEqual([])
  })
})
