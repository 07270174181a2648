import { type Cluster, condition } from "../cluster/cluster"

// The command that joins a cluster, and the progress of a join.

export interface Join {
  name: string
  way: "agent" | "kubeconfig"
  image: string
  profile: "All" | "Placement" | "Mirror"
  namespaces: string
  kubeconfig: string
  labels: string
  provider: string
  region: string
}

export const blank: Join = {
  name: "",
  way: "agent",
  image: "",
  profile: "All",
  namespaces: "",
  kubeconfig: "",
  labels: "",
  provider: "",
  region: "",
}

/** Placeholders of empty fields: the same in every language. */
export const examples = {
  cluster: "oak",
  clusters: "oak, pine",
  label: "env=prod",
  apiVersion: "apps/v1",
  kind: "Deployment",
  labelKey: "example.com/rack",
  pointer: "/spec/replicas",
}

const taken = ["hub", "fleet", "api", "apis", "clusters", "version"]

/** What is wrong with a cluster's name by the rules of the Cluster kind; undefined: nothing. */
export function nameProblem(name: string): "needsName" | "badName" | "takenName" | undefined {
  if (!name) return "needsName"
  if (name.length > 48 || !/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(name)) return "badName"
  return taken.includes(name) ? "takenName" : undefined
}

/** A word quoted for a shell's command line. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}

export function command(j: Join): string {
  const words = ["orrery", "cluster", "join", j.name || "NAME"]
  const say = (flag: string, value: string) => {
    if (value.trim()) words.push(flag, value.trim().replaceAll(/\s*,\s*/g, ","))
  }
  if (j.way === "agent") {
    words.push("--pull")
    if (j.image.trim()) say("--agent-image", j.image)
    else words.push("--agent-process")
    if (j.profile !== "All") say("--profile", j.profile)
    if (j.profile === "Placement") say("--profile-namespaces", j.namespaces || "NAMESPACE")
  } else {
    say("--cluster-kubeconfig", j.kubeconfig || "FILE")
  }
  say("--labels", j.labels)
  say("--provider", j.provider)
  say("--region", j.region)
  return words.map(quote).join(" ")
}

export type Stage = "created" | "agent" | "reachable" | "joined" | "apis" | "mirrored" | "ready"

export interface Step {
  stage: Stage
  state: "done" | "now" | "later" | "failed"
  message?: string
}

const conditions: [Stage, string][] = [
  ["agent", "AgentConnected"],
  ["reachable", "Reachable"],
  ["joined", "Joined"],
  ["apis", "APIsComplete"],
  ["mirrored", "Mirrored"],
  ["ready", "Ready"],
]

/**
 * The steps of a join in their order: done up to the first that is not; that one is in progress
 * or failed.
 */
export function steps(c: Cluster | undefined, way: Join["way"]): Step[] {
  const all: Step[] = [{ stage: "created", state: c ? "done" : "now" }]
  let open = Boolean(c)
  for (const [stage, type] of conditions) {
    if (stage === "agent" && (c ? c.spec.syncMode !== "Pull" : way !== "agent")) continue
    const is = c && condition(c, type)
    if (open && is?.status === "True") {
      all.push({ stage, state: "done" })
      continue
    }
    const failed = is?.status === "False" && !["Mirroring", "WaitingForReachable"].includes(is.reason ?? "")
    all.push({ stage, state: !open ? "later" : failed ? "failed" : "now", message: open ? is?.message : undefined })
    open = false
  }
  return all
}
