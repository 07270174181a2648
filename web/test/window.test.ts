import { expect, test } from "vitest"
import { broken, nothing, type Row, received, type Window } from "../src/hub/window"

const row = (key: number, ...cells: unknown[]) => ({ key, cells, cluster: "oak", namespace: "shop", name: `p${key}`, uid: `${key}` }) as Row
const columns = [{ name: "Name", type: "string" }]
const whole = (rows: Row[]): Window => received(nothing, { type: "window", id: 1, offset: 20, total: 9, exact: true, columns, rows }, 1000)
const keys = (w: Window) => w.rows.map((r) => r.key)

test("a window is live as of its message", () => {
  const w = whole([row(1, "a"), row(2, "b")])
  expect(w).toMatchObject({ state: "live", since: 1000, offset: 20, total: 9, exact: true })
  expect(keys(w)).toEqual([1, 2])
})

test("fields that the hub leaves out are empty, not missing", () => {
  const w = received(nothing, { type: "window", id: 1, offset: 0, total: 1, exact: true, columns, rows: [{ key: 1, cells: [] } as never] }, 1)
  expect(w.rows[0]).toMatchObject({ namespace: "", created: "" })
})

test("a delta of cells changes only these, and other rows stay the same objects", () => {
  const before = whole([row(1, "a", "Running"), row(2, "b", "Running")])
  const after = received(before, { type: "delta", id: 1, total: 9, exact: true, cells: { 2: { 1: "Failed" } } }, 2000)
  expect(after.rows.map((r) => r.cells)).toEqual([
    ["a", "Running"],
    ["b", "Failed"],
  ])
  expect(after.rows[0]).toBe(before.rows[0])
})

test("a cell that becomes null is null", () => {
  const after = received(whole([row(1, "a")]), { type: "delta", id: 1, total: 9, exact: true, cells: { 1: { 0: null } } }, 2)
  expect(after.rows[0]!.cells).toEqual([null])
})

test("an order removes, moves and adds rows", () => {
  const w = received(whole([row(1), row(2), row(3)]), { type: "delta", id: 1, total: 10, exact: false, order: [3, 4, 1], rows: [row(4)] }, 2)
  expect(keys(w)).toEqual([3, 4, 1])
  expect(w).toMatchObject({ total: 10, exact: false })
})

test("an empty order removes all rows", () => {
  expect(received(whole([row(1)]), { type: "delta", id: 1, total: 0, exact: true, order: [] }, 2).rows).toEqual([])
})

test("a row with an existing key replaces the old row", () => {
  const w = received(whole([row(1, "a")]), { type: "delta", id: 1, total: 9, exact: true, rows: [row(1, "z")] }, 2)
  expect(w.rows.map((r) => r.cells)).toEqual([["z"]])
})

test("a broken connection makes live rows stale, and keeps the time of the last message", () => {
  expect(broken(whole([row(1)]))).toMatchObject({ state: "stale", since: 1000, rows: [{ key: 1 }] })
  expect(broken(nothing).state).toBe("loading")
})

test("only a message of the hub makes stale rows live again", () => {
  const stale = broken(whole([row(1)]))
  expect(broken(stale)).toBe(stale)
  expect(received(stale, { type: "window", id: 1, offset: 0, total: 1, exact: true, columns, rows: [row(1)] }, 5000)).toMatchObject({
    state: "live",
    since: 5000,
  })
})

test("a refusal removes the rows", () => {
  const w = received(whole([row(1)]), { type: "error", id: 1, status: { code: 403, reason: "Forbidden", message: "no" } }, 2)
  expect(w).toMatchObject({ state: "refused", rows: [], total: 0, status: { message: "no" } })
})

test("an API that cannot answer makes rows stale; without rows the state is unknown", () => {
  const status = { code: 503, reason: "", message: "away" }
  expect(received(whole([row(1)]), { type: "error", id: 1, status }, 2)).toMatchObject({
    state: "stale",
    since: 1000,
    rows: [{ key: 1 }],
  })
  expect(received(nothing, { type: "error", id: 1, status }, 2).state).toBe("unknown")
})

test("unchanged rows of a new window stay the same objects", () => {
  const before = whole([row(1, "a"), row(2, "b")])
  const after = received(before, { type: "window", id: 1, offset: 0, total: 9, exact: true, columns, rows: [row(1, "a"), row(2, "c")] }, 2000)
  expect(after.rows[0]).toBe(before.rows[0])
  expect(after.rows[1]!.cells).toEqual(["c"])
})
