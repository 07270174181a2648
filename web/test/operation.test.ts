import { expect, test } from "vitest"
import { acts, expand, hostDiff, hosts, type Operation, patch, progress, seconds, toneOfChange } from "../src/operation/operation"

const run = (status: Operation["status"], spec: Partial<Operation["spec"]> = {}): Operation => ({
  metadata: { name: "oak-1" },
  spec: { cluster: "oak", action: "Create", ...spec },
  status,
})

test("steps of the Operation and of its slices are merged, and the newer of two counts", () => {
  const op = run({
    hosts: [{ name: "oak-1", state: "Running", done: 1, total: 3 }],
    steps: [
      { host: "oak-1", id: "kubelet/config", state: "Running", started: "2026-11-25T10:00:05Z" },
      { host: "oak-1", id: "containerd", state: "Failed", attempt: 2, started: "2026-11-25T10:00:03Z" },
    ],
  })
  const [host, other] = hosts(op, [
    { host: "oak-1", steps: [{ host: "oak-1", id: "os", state: "Changed", started: "2026-11-25T10:00:01Z" }] },
    {
      host: "oak-1",
      part: 1,
      steps: [{ host: "oak-1", id: "containerd", state: "Running", attempt: 1, started: "2026-11-25T10:00:02Z" }],
    },
    { host: "oak-2", steps: [{ host: "oak-2", id: "os", state: "Changed" }] },
  ])
  expect(host?.steps.map((s) => [s.id, s.state])).toEqual([
    ["os", "Changed"],
    ["containerd", "Failed"],
    ["kubelet/config", "Running"],
  ])
  expect(other?.name).toBe("oak-2")
})

test.each<[string, Operation, string[]]>([
  ["Runs", run({ phase: "Running" }), ["pause", "cancel"]],
  ["IsPaused", run({ phase: "Paused" }, { paused: true }), ["resume", "cancel"]],
  ["WillPause", run({ phase: "Running" }, { paused: true }), ["resume", "cancel"]],
  [
    "FailedAndIsTriedAgain",
    { ...run({ phase: "Failed" }), metadata: { name: "oak-1", annotations: { "lifecycle.orrery.dev/spec-hash": "1" } } },
    ["retry", "cancel"],
  ],
  ["FailedToRenew", run({ phase: "Failed" }, { action: "RenewCertificates" }), ["retry", "cancel"]],
  ["FailedForGood", run({ phase: "Failed" }), []],
  ["Succeeded", run({ phase: "Succeeded" }), []],
  ["WillBeCanceled", run({ phase: "Running" }, { canceled: true }), []],
  ["HasNotBegun", run(undefined), ["pause", "cancel"]],
])("acts %s", (_, op, want) => {
  expect(acts(op)).toEqual(want)
})

test("actions change only paused and canceled", () => {
  expect(patch("pause")).toEqual({ paused: true })
  expect(patch("resume")).toEqual({ paused: false })
  expect(patch("cancel")).toEqual({ canceled: true })
})

test("progress is unknown before there is a plan", () => {
  expect(progress(run({ phase: "Running" }))).toBeUndefined()
  expect(progress(run({ phase: "Running", stepsDone: 1, stepsTotal: 4 }))).toBe(0.25)
  expect(progress(run({ phase: "Succeeded" }))).toBe(1)
})

test("seconds", () => {
  expect(seconds("2026-11-25T10:00:00Z", "2026-11-25T10:00:07Z", 0)).toBe(7)
  expect(seconds(undefined, undefined, 0)).toBeUndefined()
})

test("ranges of hosts", () => {
  expect(expand("oak-[1:3]")).toEqual(["oak-1", "oak-2", "oak-3"])
  expect(expand("oak-[08:10].example")).toEqual(["oak-08.example", "oak-09.example", "oak-10.example"])
  expect(expand("oak")).toEqual(["oak"])
})

test("hosts that the spec adds and removes", () => {
  const spec = { hosts: [{ name: "a" }, { name: "b" }], roleGroups: { "control-plane": ["a"], worker: ["a", "b"] } }
  expect(hostDiff(spec, [{ hostname: "a" }, { hostname: "c", roles: ["worker"] }])).toEqual([
    { name: "a", change: "kept", roles: ["control-plane", "worker"] },
    { name: "b", change: "added", roles: ["worker"] },
    { name: "c", change: "removed", roles: ["worker"] },
  ])
})

test("the tone of a line of a plan shows the kind of change", () => {
  expect(["+ File /a", "~ File /a", "! File /a", "- File /a", "* Drain h-1 [drain]", ""].map(toneOfChange)).toEqual([
    "good",
    "warn",
    "warn",
    "bad",
    "plain",
    "plain",
  ])
})
