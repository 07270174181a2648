import { describe, expect, it } from "vitest"
import { clean } from "../src/logs/clean"
import { parseTime, Ring, Splitter, search } from "../src/logs/merge"

const bytes = (text: string) => new TextEncoder().encode(text)
const line = (time: number, text = String(time)) => ({ time, text })

describe("parseTime", () => {
  it("reads any zone, to the microsecond", () => {
    expect(parseTime("1970-01-01T00:00:01.000002999Z")).toBe(1_000_002)
    expect(parseTime("1970-01-01T08:00:01.5+08:00")).toBe(1_500_000)
    expect(parseTime("no time")).toBeUndefined()
  })
})

describe("Splitter", () => {
  it("splits lines and characters across chunks", () => {
    const s = new Splitter()
    const all = bytes("1970-01-01T00:00:01Z grüße 你好\n1970-01-01T00:00:02Z b\n")
    const out = [...all].flatMap((byte) => s.add(new Uint8Array([byte])))
    expect(out).toEqual([line(1e6, "grüße 你好"), line(2e6, "b")])
  })
  it("skips lines that it already has when a stream is read again from the last second", () => {
    const s = new Splitter()
    s.add(bytes("1970-01-01T00:00:01.1Z a\n1970-01-01T00:00:01.2Z b\n1970-01-01T00:00:01.2Z c\n"))
    expect(s.since).toBe("1970-01-01T00:00:01.000Z")
    s.resume()
    const again = s.add(
      bytes("1970-01-01T00:00:01.1Z a\n1970-01-01T00:00:01.2Z b\n1970-01-01T00:00:01.2Z c\n1970-01-01T00:00:01.2Z d\n1970-01-01T00:00:03Z e\n"),
    )
    expect(again.map((l) => l.text)).toEqual(["d", "e"])
  })
  it("keeps lines without a time, and a last line without an end", () => {
    const s = new Splitter()
    expect(s.add(bytes("1970-01-01T00:00:01Z a\nunable to retrieve logs\nrest"))).toEqual([line(1e6, "a"), line(1e6, "unable to retrieve logs")])
    expect(s.end()).toEqual([line(1e6, "rest")])
  })
})

describe("Ring", () => {
  it("merges streams by time, in any order of arrival", () => {
    const ring = new Ring()
    ring.add(0, [line(1), line(4), line(7)])
    expect(ring.lines()).toHaveLength(3)
    ring.add(1, [line(2), line(9)])
    ring.add(2, [line(3), line(8)])
    expect(ring.lines().map((l) => l.time)).toEqual([1, 2, 3, 4, 7, 8, 9])
  })
  it("keeps the order of a stream's lines with the same time", () => {
    const ring = new Ring()
    ring.add(0, [line(1, "a"), line(1, "b")])
    ring.lines()
    ring.add(0, [line(1, "c")])
    expect(ring.lines().map((l) => l.text)).toEqual(["a", "b", "c"])
  })
  it("keeps the latest lines, and does not change the list of a paused view", () => {
    const ring = new Ring(3)
    ring.add(0, [line(1), line(2), line(3)])
    const paused = ring.lines()
    ring.add(0, [line(4), line(5)])
    expect(ring.lines().map((l) => l.time)).toEqual([3, 4, 5])
    expect(paused.map((l) => l.time)).toEqual([1, 2, 3])
  })
  it("equals sorting, for any order of arrival", () => {
    let seed = 7
    const random = (n: number) => {
      seed = (seed * 1103515245 + 12345) % 2147483648
      return seed % n
    }
    const ring = new Ring(100_000)
    const all: number[] = []
    for (let i = 0; i < 300; i++) {
      const batch = Array.from({ length: random(9) }, () => random(1000)).sort((a, b) => a - b)
      all.push(...batch)
      ring.add(
        random(5),
        batch.map((n) => line(n)),
      )
      if (random(3) === 0) ring.lines()
    }
    expect(ring.lines().map((l) => l.time)).toEqual(all.sort((a, b) => a - b))
  })
})

describe("search", () => {
  it("searches for a text, not a pattern", () => {
    const lines = ["a.b", "axb", "A.B"].map((text, number) => ({ time: 0, stream: 0, number, text }))
    expect(search(lines, "a.b")).toEqual([0, 2])
    expect(search(lines, "")).toEqual([])
  })
})

describe("clean", () => {
  it("removes all control sequences of terminals and browsers", () => {
    expect(clean("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\ \x1b[2J\x1bcok\x07")).toBe("red link ok")
    expect(clean("10%\r20%\r30%")).toBe("30%")
    expect(clean("dos\r")).toBe("dos")
    expect(clean("a\u202eb\u0000c\u009b31md\ttab\u2066")).toBe("abcd\ttab")
    expect(clean("<img src=x onerror=alert(1)>")).toBe("<img src=x onerror=alert(1)>")
    expect(clean("x".repeat(20_000))).toHaveLength(10_001)
  })
})
