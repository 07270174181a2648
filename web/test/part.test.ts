import { expect, test } from "vitest"
import { comparable, diffLines } from "../src/part/diff"
import { toneOf } from "../src/part/Mark"
import { age } from "../src/part/time"
import { fill } from "../src/text/text"

const s = 1000
test("ages as kubectl writes them", () => {
  const of = [0, 119 * s, 120 * s, 301 * s, 3600 * s, 7 * 3600 * s + 60 * s, 47 * 3600 * s, 49 * 3600 * s, 30 * 86400 * s, 800 * 86400 * s].map(age)
  expect(of).toEqual(["0s", "119s", "2m", "5m1s", "60m", "7h1m", "47h", "2d1h", "30d", "2y70d"])
  expect(age(-5)).toBe("0s")
})

test("texts: parameters, and numbers with singular or plural", () => {
  expect(fill("{n|row|rows} of {name}", { n: 1, name: "oak" })).toBe("1 row of oak")
  expect(fill("{n|row|rows}", { n: 1200 })).toBe("1,200 rows")
  expect(fill("{missing}!")).toBe("!")
  expect(fill("{name}", { name: "{n}<b>" })).toBe("{n}<b>")
})

test("a line diff contains both texts completely, for random texts", () => {
  let seed = 7
  const random = (n: number) => {
    seed = (seed * 48271) % 2147483647
    return seed % n
  }
  for (let i = 0; i < 200; i++) {
    const a = Array.from({ length: random(12) }, () => "abc"[random(3)]!)
    const b = Array.from({ length: random(12) }, () => "abc"[random(3)]!)
    const lines = diffLines(a, b, 99)
    const side = (without: string) => lines.flatMap((l) => (l.kind === without || l.kind === "gap" ? [] : [l.text]))
    expect(side("added")).toEqual(a)
    expect(side("removed")).toEqual(b)
    for (const l of lines) if (l.kind === "same") expect([a[l.before! - 1], b[l.after! - 1]]).toEqual([l.text, l.text])
  }
})

test("a diff is minimal, and omits lines far from any difference", () => {
  const a = Array.from({ length: 40 }, (_, i) => `${i}`)
  const b = a.map((line) => (line === "20" ? "x" : line))
  expect(diffLines(a, b).map((l) => (l.kind === "gap" ? `gap ${l.count}` : l.kind[0]))).toEqual(["gap 17", "s", "s", "s", "r", "a", "s", "s", "s", "gap 16"])
  expect(diffLines(a, a)).toEqual([{ kind: "gap", count: 40 }])
})

test("metadata that changes all the time is not compared", () => {
  expect(comparable({ metadata: { name: "a", resourceVersion: "1", managedFields: [], generation: 2 }, spec: {} })).toEqual({
    metadata: { name: "a" },
    spec: {},
  })
})

test("the tones of states", () => {
  expect(["Running", "Pending", "CrashLoopBackOff", "Unknown", "1.2.3"].map(toneOf)).toEqual(["good", "warn", "bad", "unknown", "plain"])
})
