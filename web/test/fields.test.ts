import { describe, expect, it } from "vitest"
import { diff, type Json, overlap } from "../src/hub/fields"

const paths = (a: Json, b: Json, whole = false) => diff(a, b, whole).map((d) => d.path)

describe("diff", () => {
  it("names elements of lists as the hub's history does", () => {
    const a = { spec: { containers: [{ name: "web", image: "nginx:1" }], args: ["a", "b"] } }
    const b = {
      spec: {
        containers: [
          { name: "side", image: "x" },
          { name: "web", image: "nginx:2" },
        ],
        args: ["a", "c"],
      },
    }
    expect(paths(a, b)).toEqual(["spec.args[1]", "spec.containers[name=web].image", "spec.containers[name=side]"])
    expect(paths(a, b, true)[0]).toBe("spec.args")
  })
  it("reports a change of order alone, and distinguishes null from absent", () => {
    expect(paths({ l: [{ name: "a" }, { name: "b" }] }, { l: [{ name: "b" }, { name: "a" }] })).toEqual(["l"])
    expect(paths({ a: null }, {})).toEqual(["a"])
    expect(paths({ a: [] }, { a: [] })).toEqual([])
    expect(paths({ a: [] }, { a: {} })).toEqual(["a"])
  })
  it("treats hostile keys as ordinary keys", () => {
    const hostile = JSON.parse('{"metadata": {"annotations": {"__proto__": "x", "constructor": "y", "a/b.c": "<img src=x>"}}}')
    expect(paths({ metadata: { annotations: {} } }, hostile)).toEqual([
      "metadata.annotations.__proto__",
      "metadata.annotations['a/b.c']",
      "metadata.annotations.constructor",
    ])
  })
})

describe("overlap", () => {
  it("is true for a field and the fields inside it", () => {
    expect(overlap(["spec"], ["spec", "replicas"])).toBe(true)
    expect(overlap(["spec", { name: "a" }, "x"], ["spec", { name: "a" }])).toBe(true)
    expect(overlap(["spec", { name: "a" }], ["spec", { name: "b" }])).toBe(false)
  })
})
