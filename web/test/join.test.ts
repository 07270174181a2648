import { expect, test } from "vitest"
import type { Cluster, Condition } from "../src/cluster/cluster"
import { blank, command, nameProblem, quote, steps } from "../src/join/command"

test("names that a Cluster cannot have", () => {
  expect(nameProblem("")).toBe("needsName")
  expect(nameProblem("Oak")).toBe("badName")
  expect(nameProblem("a".repeat(49))).toBe("badName")
  expect(nameProblem("hub")).toBe("takenName")
  expect(nameProblem("oak-1")).toBeUndefined()
})

test("commands", () => {
  expect(command(blank)).toBe("orrery cluster join NAME --pull --agent-process")
  expect(command({ ...blank, name: "oak", image: "r.example/agent:1", profile: "Placement", namespaces: "a, b", labels: "env=prod" })).toBe(
    "orrery cluster join oak --pull --agent-image r.example/agent:1 --profile Placement --profile-namespaces a,b --labels env=prod",
  )
  expect(command({ ...blank, name: "oak", way: "kubeconfig", kubeconfig: "my file" })).toBe("orrery cluster join oak --cluster-kubeconfig 'my file'")
})

test("values of the form cannot inject a command", () => {
  expect(quote("$(reboot)")).toBe("'$(reboot)'")
  expect(quote("it's; x")).toBe(`'it'\\''s; x'`)
})

const oak = (...conditions: [string, Condition["status"], string?][]): Cluster => ({
  metadata: { name: "oak" },
  spec: { syncMode: "Pull" },
  status: { conditions: conditions.map(([type, status, reason]) => ({ type, status, reason, message: `${type} says` })) },
})

test("the steps of a join follow each other", () => {
  expect(steps(undefined, "agent").map((s) => s.state)).toEqual(["now", "later", "later", "later", "later", "later", "later"])
  expect(steps(oak(["AgentConnected", "Unknown", "WaitingForAgent"]), "agent")[1]).toEqual({
    stage: "agent",
    state: "now",
    message: "AgentConnected says",
  })
  const refused = steps(oak(["AgentConnected", "True"], ["Reachable", "True"], ["Joined", "False", "Forbidden"]), "agent")
  expect(refused.map((s) => s.state)).toEqual(["done", "done", "done", "failed", "later", "later", "later"])
  const mirrors = steps(
    oak(["AgentConnected", "True"], ["Reachable", "True"], ["Joined", "True"], ["APIsComplete", "True"], ["Mirrored", "False", "Mirroring"]),
    "agent",
  )
  expect(mirrors.at(-2)?.state).toBe("now")
})

test("a join by kubeconfig does not wait for an agent", () => {
  expect(steps(undefined, "kubeconfig").map((s) => s.stage)).not.toContain("agent")
})
