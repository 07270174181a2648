import { expect, test } from "vitest"
import { beginOf, brief, rows, sift, within } from "../src/change/changes"
import type { Change } from "../src/history/steps"
import type { Kind } from "../src/hub/kinds"

const kind = { kind: "Deployment", of: "Deployment.apps" } as Kind

const change = (cluster: string, name: string, time: string, more: Partial<Change> = {}): Change => ({
  cluster,
  name,
  namespace: "shop",
  uid: `${cluster}/${name}`,
  change: "Updated",
  time,
  fields: [{ path: "spec.replicas", before: 1, after: 2 }],
  ...more,
})

test("a span begins where the history does, if that is later", () => {
  const now = Date.parse("2026-11-28T08:00:00Z")
  const begins = beginOf("the history of pods is known from 2026-11-28T07:30:00Z on: ask for a later moment") ?? ""
  expect(begins).toBe("2026-11-28T07:30:00Z")
  expect(beginOf("at 2026-11-28T07:00:00Z the hub did not have shop yet: ask for a later moment")).toBeUndefined()
  expect(within("-1h", begins, now)).toEqual({ since: begins, from: begins })
  expect(within("-1d", begins, now)).toEqual({ since: begins, from: begins })
  expect(within("-15m", begins, now)).toEqual({ since: "-15m" })
  expect(within("-1h", "", now)).toEqual({ since: "-1h" })
})

test("one change in several clusters is one row, the latest first", () => {
  const all = rows([
    {
      kind,
      items: [
        change("oak", "web", "2026-11-25T10:00:00Z", { by: [{ manager: "orrery" }] }),
        change("ash", "web", "2026-11-25T10:00:01Z", { by: [{ manager: "orrery" }] }),
        change("oak", "api", "2026-11-25T10:00:05Z"),
      ],
    },
  ])
  expect(all.map((r) => [r.name, r.clusters, r.time, r.by])).toEqual([
    ["api", ["oak"], "2026-11-25T10:00:05Z", []],
    ["web", ["ash", "oak"], "2026-11-25T10:00:01Z", ["orrery"]],
  ])
})

test("a different change of the same object in another cluster is another row", () => {
  const other = { fields: [{ path: "spec.replicas", before: 1, after: 3 }] }
  expect(rows([{ kind, items: [change("oak", "web", "1"), change("ash", "web", "1", other)] }])).toHaveLength(2)
})

test("rows are filtered by the words that they show", () => {
  const all = rows([{ kind, items: [change("oak", "web", "1"), change("ash", "api", "2")] }])
  expect(sift(all, "oak replicas").map((r) => r.name)).toEqual(["web"])
})

test("values in one line", () => {
  expect(brief({ a: 1 })).toBe('{"a":1}')
  expect(brief("x".repeat(200))).toHaveLength(120)
  expect(brief(undefined)).toBe("")
})
