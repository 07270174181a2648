import { expect, test } from "vitest"
import { type Cluster, type Condition, capacity, cordoned, inUse, parseTaint, retaint, taintText, unschedulable, verdict } from "../src/cluster/cluster"
import { amount, quantity } from "../src/cluster/quantity"
import { paused, sift, tiles } from "../src/fleet/tiles"
import { type Fleet, freshness, freshnessIn, lagText, toneOfFreshness } from "../src/hub/freshness"
import { freshnessOfRow, staleColumn } from "../src/table/columns"

const is = (type: string, status: Condition["status"], reason = "", lastTransitionTime = "2026-11-25T10:00:00Z"): Condition => {
  return { type, status, reason, lastTransitionTime }
}

function cluster(name: string, conditions: Condition[], more: Partial<Cluster> & { version?: string } = {}): Cluster {
  return {
    metadata: { name, ...more.metadata },
    spec: more.spec ?? {},
    status: { kubernetesVersion: more.version ?? "v1.36.3", conditions, ...more.status },
  }
}

const well = [is("Reachable", "True"), is("Joined", "True"), is("Ready", "True", "Ready")]

test.each<[string, Cluster, string]>([
  ["Ready", cluster("a", well), "ready"],
  ["UnreachableIsUnknownNotFailed", cluster("a", [is("Reachable", "Unknown", "Unreachable"), is("Ready", "Unknown", "Unreachable")]), "unreachable"],
  ["UnreachableThoughReadyIsOld", cluster("a", [is("Reachable", "Unknown", "Unreachable"), is("Ready", "False", "Forbidden")]), "unreachable"],
  ["CredentialsRefused", cluster("a", [is("Reachable", "True"), is("Ready", "False", "Unauthorized")]), "unready"],
  ["FirstLists", cluster("a", [is("Reachable", "True"), is("Ready", "False", "Mirroring")]), "joining"],
  ["CertificatesEnd", cluster("a", [...well, is("CertificatesExpiring", "True", "ExpiringSoon")]), "warning"],
  ["CertificatesAreValid", cluster("a", [...well, is("CertificatesExpiring", "False", "Valid")]), "ready"],
  ["WaitsForItsAgent", cluster("a", [is("Reachable", "Unknown", "WaitingForAgent"), is("Ready", "Unknown")], { version: "" }), "joining"],
  ["NothingIsSaidYet", cluster("a", []), "joining"],
  ["IsBuilt", cluster("a", [is("Provisioned", "False", "Provisioning")], { version: "", spec: { provision: {} } }), "building"],
  ["BuildFailed", cluster("a", [is("Provisioned", "False", "OperationFailed")], { version: "", spec: { provision: {} } }), "unready"],
  ["Leaves", cluster("a", well, { metadata: { name: "a", deletionTimestamp: "2026-11-25T11:00:00Z" } }), "leaving"],
])("verdict %s", (_, c, want) => {
  expect(verdict(c).health).toBe(want)
})

test("an unreachable cluster has the time since when", () => {
  const at = "2026-11-25T09:00:00Z"
  expect(verdict(cluster("a", [is("Reachable", "Unknown", "Unreachable", at), is("Ready", "Unknown")])).since).toBe(at)
})

test.each<[string, number | undefined]>([
  ["100m", 0.1],
  ["1", 1],
  ["2Gi", 2 ** 31],
  ["1k", 1000],
  ["1e3", 1000],
  ["1.5", 1.5],
  ["none", undefined],
])("quantity %s", (text, want) => {
  expect(quantity(text)).toBe(want)
})

test("amounts have the unit of their resource", () => {
  expect(amount("memory", 1.5 * 2 ** 30)).toBe("1.5 GiB")
  expect(amount("cpu", 0.25)).toBe("0.3")
  expect(amount("pods", 1500)).toBe("1.5k")
})

test("capacity lists common resources first, and omits those without any", () => {
  const c = cluster("a", well)
  c.status = {
    ...c.status,
    resourceSummary: {
      allocatable: { "example.com/gpu": "0", "a/b": "2", memory: "4Gi", cpu: "4" },
      allocated: { cpu: "1" },
      allocating: undefined,
    },
  }
  expect(capacity(c).map((u) => [u.resource, u.ratio])).toEqual([
    ["cpu", 0.25],
    ["memory", 0],
    ["a/b", 0],
  ])
})

test("taints are parsed, and added and removed by key and effect", () => {
  expect(parseTaint("a=b:NoSchedule")).toEqual({ key: "a", value: "b", effect: "NoSchedule" })
  expect(parseTaint("a:NoExecute")).toEqual({ key: "a", effect: "NoExecute" })
  expect(parseTaint("a=b")).toBeUndefined()
  expect(taintText({ key: "a", value: "b", effect: "NoSchedule" })).toBe("a=b:NoSchedule")
  const on = retaint([{ key: "x", effect: "NoExecute" }], unschedulable, true)
  expect(on).toHaveLength(2)
  expect(retaint(on, unschedulable, false)).toEqual([{ key: "x", effect: "NoExecute" }])
  expect(cordoned(cluster("a", well, { spec: { taints: on } }))).toBe(true)
})

test("tiles: clusters with problems come first, and none is missing", () => {
  const all = tiles(
    [
      cluster("good-10", well),
      cluster("good-9", well),
      cluster("away", [is("Reachable", "Unknown", "Unreachable"), is("Ready", "Unknown")]),
      cluster("bad", [is("Reachable", "True"), is("Ready", "False", "Forbidden")]),
    ],
    fleetOf({ "good-9": "Behind" }),
  )
  expect(all.map((t) => t.name)).toEqual(["bad", "away", "good-9", "good-10"])
  expect(all.map((t) => t.fresh.state)).toEqual(["unknown", "unknown", "behind", "unknown"])
})

test("tiles: without the right to list Clusters, the clusters of the live socket are shown", () => {
  const all = tiles(undefined, fleetOf({ oak: "Synced", ash: "Unknown", elm: "Reading" }))
  expect(all.map((t) => [t.name, t.health])).toEqual([
    ["ash", "unreachable"],
    ["elm", "joining"],
    ["oak", "ready"],
  ])
})

const lostAt = "2026-11-25T09:00:00Z"
const typeAt = "2026-11-25T08:57:00Z"

/** The fleet as the live socket sends it. All clusters that are not current have the same time. */
const fleetOf = (states: Record<string, string>): Fleet => ({
  connected: true,
  clusters: Object.entries(states).map(([name, state]) => ({ name, state, since: state === "Synced" ? "" : lostAt, lag: 9 })),
})

test("all views of an unreachable cluster show the same age", () => {
  const fleet = fleetOf({ oak: "Synced", ash: "Unknown", elm: "Behind" })
  const lost = { state: "lost", since: lostAt }
  expect(freshness(fleet, "ash")).toEqual(lost)
  // The page of an object and its row: the type was last current even earlier.
  expect(freshnessIn(fleet, "ash", typeAt)).toEqual(lost)
  expect(freshnessIn(fleet, "ash", undefined)).toEqual(lost)
  const row = (cluster: string, cell: string) => ({ cluster, cells: [cell] }) as unknown as Parameters<typeof freshnessOfRow>[1]
  expect(freshnessOfRow(fleet, row("ash", "2m42s"), 0)).toEqual(lost)
  // The card, also while the conditions are older.
  const card = tiles([cluster("ash", well)], fleet)[0]
  expect([card?.health, card?.since, card?.message]).toEqual(["unreachable", lostAt, undefined])
  expect(tiles([cluster("ash", [is("Reachable", "Unknown", "Unreachable", typeAt), is("Ready", "Unknown")])], fleet)[0]?.since).toBe(lostAt)
})

test("in a reachable cluster each type has its own age", () => {
  const fleet = fleetOf({ oak: "Synced", elm: "Behind" })
  expect(freshness(fleet, "elm")).toEqual({ state: "behind", since: lostAt })
  expect(freshnessIn(fleet, "elm", undefined)).toEqual({ state: "current" })
  expect(freshnessIn(fleet, "elm", typeAt)).toEqual({ state: "behind", since: typeAt })
  const row = (cell: string) => ({ cluster: "elm", cells: ["x", cell] }) as unknown as Parameters<typeof freshnessOfRow>[1]
  expect(freshnessOfRow(fleet, row("now"), 1)).toEqual({ state: "current" })
  expect(freshnessOfRow(fleet, row("2m42s"), 1).state).toBe("behind")
  expect(freshness({ ...fleet, connected: false }, "oak")).toEqual({ state: "unknown" })
  expect(["Synced", "Reading", "Behind", "Unknown", "?"].map((state) => toneOfFreshness(freshness(fleetOf({ a: state }), "a")))).toEqual([
    "good",
    "warn",
    "warn",
    "unknown",
    "unknown",
  ])
  const columns = (...names: string[]) => names.map((name) => ({ name, type: "string" }))
  expect([columns("Last Seen", "Type"), columns("Last Seen", "Type", "Last Seen"), []].map(staleColumn)).toEqual([-1, 2, -1])
})

test("tiles are filtered by words and counted by health", () => {
  const all = tiles([cluster("oak", well), cluster("ash", well, { spec: { region: "eu" } })], fleetOf({}))
  expect(sift(all, "eu").shown.map((t) => t.name)).toEqual(["ash"])
  expect(sift(all, "", "unready")).toEqual({ shown: [], counts: { ready: 2 } })
})

test("failover is paused unless its ConfigMap says otherwise", () => {
  expect([undefined, { paused: "false", by: "ann" }].map(paused)).toEqual([undefined, undefined])
  expect([{ paused: "true", by: "ann", why: "repair" }, { paused: "true", by: "", why: "" }, { paused: "?" }, {}].map(paused)).toEqual([
    "ann: repair",
    "",
    "",
    "",
  ])
})

test("the use of a node shows ? for unknown amounts", () => {
  expect(inUse("cpu", "2500000000n", "8")).toBe("2.5 / 8")
  expect(inUse("memory", "512Mi", "1Gi")).toBe("512 MiB / 1 GiB")
  expect(inUse("pods", 0, "110")).toBe("0 / 110")
  expect(inUse("memory", undefined, "1Gi")).toBe("? / 1 GiB")
  expect(inUse("cpu", undefined, undefined)).toBe("")
})

test("a cluster that was never reached is described as that, not as seen some time ago", () => {
  const since = "2026-11-25T09:00:00Z"
  const fleet: Fleet = {
    connected: true,
    clusters: [
      { name: "never", state: "Unknown", since: "", lag: 0 },
      { name: "lost", state: "Unknown", since, lag: 9 },
      { name: "behind", state: "Behind", since, lag: 9 },
      { name: "reading", state: "Reading", since: "", lag: 0 },
    ],
  }
  const text = (name: string) => lagText(freshness(fleet, name))
  expect(freshness(fleet, "never")).toEqual({ state: "lost", since: undefined })
  const texts = ["never", "lost", "behind", "reading", "missing"].map(text)
  expect(texts.join()).toBe("layout.lagNever,layout.lagUnknown,layout.lagBehind,layout.lagReading,cluster.lagUnknown")
})
