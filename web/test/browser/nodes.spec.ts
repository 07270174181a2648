import { test } from "vitest"
import { axe, expect, kubeconfig, run, visit, withBrowser } from "./world"

withBrowser()

const inOak = (...args: string[]) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", "oak", ...args])

test("nodes show their number of pods, and what a metrics server measures if there is one", async () => {
  const group = "metrics.k8s.io"
  const usage = { type: "object", additionalProperties: { type: "string" } }
  const crd = {
    apiVersion: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    metadata: { name: `nodes.${group}`, annotations: { "api-approved.kubernetes.io": "unapproved, a test" } },
    spec: {
      group,
      scope: "Cluster",
      names: { plural: "nodes", kind: "NodeMetrics" },
      versions: [{ name: "v1beta1", served: true, storage: true, schema: { openAPIV3Schema: { type: "object", properties: { usage } } } }],
    },
  }
  const measured = { apiVersion: `${group}/v1beta1`, kind: "NodeMetrics", metadata: { name: "oak-1" }, usage: { cpu: "1500000000n", memory: "2Gi" } }
  const make = (object: object) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", "oak", "apply", "-f", "-"], JSON.stringify(object))
  const v = await visit()
  const row = v.page.getByRole("row").filter({ hasText: "oak-1" })
  const there = async () => (await inOak("get", "pods", "-A", "--field-selector=spec.nodeName=oak-1", "-o", "name")).trim().split("\n")
  try {
    // A pod that ended does not count.
    await make({ apiVersion: "v1", kind: "Pod", metadata: { name: "over" }, spec: { nodeName: "oak-1", containers: [{ name: "a", image: "a" }] } })
    await inOak("wait", "--for=condition=Ready", "pod/over", "--timeout=180s")
    await inOak("patch", "pod", "over", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Succeeded"}}')
    await v.go("/clusters/oak?tab=nodes")
    // Pods of other tests may disappear meanwhile.
    const counted = async () => {
      const names = await there()
      expect(names).toContain("pod/over")
      return row.getByText(`${names.length - 1} / 110`, { exact: true }).count()
    }
    await expect.poll(counted).toBe(1)
    await row.getByText("? / 32 GiB", { exact: true }).waitFor()
    expect(v.seen.failures).toEqual([])
    await make(crd)
    await inOak("wait", "--for=condition=Established", `crd/nodes.${group}`, "--timeout=180s")
    await make(measured)
    await expect
      .poll(async () => {
        await v.page.reload()
        await row.waitFor()
        await v.page.waitForLoadState("networkidle")
        return row.textContent()
      })
      .toMatch(/1\.5 \/ 8.*2 GiB \/ 32 GiB/)
    expect(await axe(v.page)).toEqual([])
  } finally {
    await inOak("delete", "--ignore-not-found", "--wait=false", "pod", "over")
    await inOak("delete", "--ignore-not-found", "crd", `nodes.${group}`)
  }
}, 600_000)
