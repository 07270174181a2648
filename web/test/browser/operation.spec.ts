import { createServer, type Server } from "node:net"
import { afterAll, beforeAll, test } from "vitest"
import { apply, axe, expect, kubectl, settled, visit, withBrowser } from "./world"

withBrowser()

// A run of the hub's own engine, on a host that takes connections and says nothing: it goes on until it is ended.
const cluster = `maple-${Date.now()}`
let host: Server

beforeAll(async () => {
  host = createServer((socket) => socket.on("error", () => {}))
  await new Promise<void>((listens) => host.listen(0, "127.0.0.1", listens))
  const { port } = host.address() as { port: number }
  await apply(`
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Secret
  metadata: {name: ${cluster}, namespace: default, annotations: {cluster.orrery.dev/for-cluster: ${cluster}}}
  stringData: {password: unused}
- apiVersion: cluster.orrery.dev/v1alpha1
  kind: Cluster
  metadata: {name: ${cluster}}
  spec:
    provision:
      hosts: [{name: maple-1, address: 127.0.0.1, internalAddress: 10.0.0.1, port: ${port}, secretRef: {namespace: default, name: ${cluster}}}]
      roleGroups: {control-plane: [maple-1], worker: [maple-1]}
      kubernetes: {version: v1.36.3}
`)
})

afterAll(async () => {
  await kubectl("delete", "cluster", cluster, "--wait=false")
  host.close()
})

const get = (name: string, path: string) => kubectl("get", "operation", name, "-o", `jsonpath={${path}}`)

test("a run that goes on: its steps as they are recorded, pause, resume and cancel", async () => {
  const v = await visit()
  await v.go("/operations")
  await v.page.getByRole("link", { name: cluster, exact: true }).waitFor()
  await v.page.getByRole("row").filter({ hasText: cluster }).getByRole("link").first().click()
  await settled(v.page)
  const name = decodeURIComponent(new URL(v.page.url()).pathname.split("/").at(-1) ?? "")
  await v.page.getByRole("button", { name: "Pause" }).waitFor()
  const tell = (steps: { id: string; state: string; message?: string }[], uid: string) =>
    apply(
      JSON.stringify({
        apiVersion: "lifecycle.orrery.dev/v1alpha1",
        kind: "OperationSlice",
        metadata: {
          name: `${name}-seen`,
          labels: { "lifecycle.orrery.dev/operation": name },
          ownerReferences: [{ apiVersion: "lifecycle.orrery.dev/v1alpha1", kind: "Operation", name, uid }],
        },
        operation: name,
        host: "maple-1",
        part: 0,
        steps: steps.map((s, i) => ({ host: "maple-1", attempt: 1, started: `2026-01-01T00:00:0${i}.000000Z`, ...s })),
      }),
    )
  // Written as the hub writes them, while the page is open.
  const uid = await get(name, ".metadata.uid")
  await tell([{ id: "packages", state: "Running" }], uid)
  const step = (id: string) => v.page.locator(".steps li").filter({ hasText: id })
  const of = v.page.locator("details.host").filter({ hasText: "maple-1" })
  await of.waitFor()
  if (!(await of.evaluate((d: HTMLDetailsElement) => d.open))) await of.locator("summary").click()
  await step("packages").getByText("running").waitFor()
  await tell(
    [
      { id: "packages", state: "Changed" },
      { id: "kubelet", state: "Failed", message: "the unit does not start" },
    ],
    uid,
  )
  await step("packages").getByText("done").waitFor()
  await step("kubelet").getByText("the unit does not start").waitFor()
  expect(await axe(v.page)).toEqual([])

  await v.page.getByRole("button", { name: "Pause" }).click()
  await v.page.getByRole("button", { name: "Resume" }).waitFor()
  expect(await get(name, ".spec.paused")).toBe("true")
  await v.page.getByRole("button", { name: "Resume" }).click()
  await v.page.getByRole("button", { name: "Pause" }).waitFor()
  expect(await get(name, ".spec.paused")).not.toBe("true")
  await v.page.getByRole("button", { name: "Cancel" }).click()
  await v.page.getByRole("dialog").getByRole("button", { name: "End it" }).click()
  await v.page.getByRole("button", { name: "Cancel" }).waitFor({ state: "detached" })
  expect(await get(name, ".spec.canceled")).toBe("true")
  await v.page.getByText("Canceled").first().waitFor({ timeout: 50_000 })
  expect(v.seen.failures).toEqual([])
}, 120_000)
