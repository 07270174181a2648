import { spawn } from "node:child_process"
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, beforeAll } from "vitest"
import { kubeconfig, kubectl, run } from "./world"

const until = async (check: () => Promise<boolean>) => {
  while (!(await check())) await new Promise((later) => setTimeout(later, 500))
}

/**
 * Adds many pods in simulated clusters, whose API servers are one process. They are joined and
 * mirrored like others.
 */
export function withLoad(o: { clusters: number; pods: number; rate?: number }): void {
  const dir = mkdtempSync(join(tmpdir(), "load-"))
  let clusters: ReturnType<typeof spawn> | undefined
  const joined: string[] = []
  const all = "/apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/api/v1/pods?limit=1"
  const there = async () => JSON.parse(await kubectl("get", "--raw", all)).metadata.remainingItemCount
  const written = (name: string) => {
    try {
      return readFileSync(join(dir, name), "utf8")
    } catch {
      return ""
    }
  }
  beforeAll(async () => {
    const args = ["--dir", dir, "--clusters", o.clusters, "--pods", o.pods / o.clusters, "--rate", o.rate ?? 0]
    clusters = spawn(process.env.SIMULATED ?? "", args.map(String), { stdio: "inherit" })
    await until(async () => written("address") !== "")
    const ca = Buffer.from(written("ca.crt")).toString("base64")
    const names = Object.entries(JSON.parse(written("clusters.json")) as Record<string, string>)
    const joinOne = async ([name, address]: [string, string]) => {
      const file = join(dir, `${name}.kubeconfig`)
      const config = {
        apiVersion: "v1",
        kind: "Config",
        "current-context": "c",
        clusters: [{ name: "c", cluster: { server: `${address}/clusters/${name}`, "certificate-authority-data": ca } }],
        users: [{ name: "u", user: { token: "simulated" } }],
        contexts: [{ name: "c", context: { cluster: "c", user: "u" } }],
      }
      writeFileSync(file, JSON.stringify(config))
      await run([
        "cluster",
        "join",
        name,
        "--kubeconfig",
        kubeconfig,
        "--context",
        "hub",
        "--cluster-kubeconfig",
        file,
        "--keep-credentials",
        "--timeout",
        "10m",
      ])
      joined.push(name)
    }
    while (names.length) await Promise.all(names.splice(0, 5).map(joinOne))
    await until(async () => (await there()) >= o.pods)
  }, 900_000)
  afterAll(async () => {
    // A demo that keeps running must be left as it was.
    const unjoin = (name: string) => run(["cluster", "unjoin", name, "--kubeconfig", kubeconfig, "--context", "hub"])
    if (process.env.CONSOLE_KEPT) await Promise.all(joined.map(unjoin))
    clusters?.kill()
  }, 300_000)
}
