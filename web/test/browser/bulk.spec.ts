import { beforeEach, describe, test } from "vitest"
import { axe, expect, kubeconfig, run, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

const namespace = `bulk-${Date.now()}`
const clusters = ["birch", "oak", "pine"]
const inCluster = (cluster: string, ...args: string[]) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", cluster, "-n", namespace, ...args])

beforeEach(async () => {
  const deployment = (name: string) => ({
    apiVersion: "apps/v1",
    kind: "Deployment",
    metadata: { name, namespace },
    spec: {
      replicas: 1,
      selector: { matchLabels: { app: name } },
      template: { metadata: { labels: { app: name } }, spec: { containers: [{ name: "web", image: "registry.example.com/web:1" }] } },
    },
  })
  const items = [{ apiVersion: "v1", kind: "Namespace", metadata: { name: namespace } }, deployment("one"), deployment("two")]
  const manifest = JSON.stringify({ apiVersion: "v1", kind: "List", items })
  await Promise.all(clusters.map((c) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", c, "apply", "-f", "-"], manifest)))
})

/**
 * A request of the page that changes an object in a cluster, in the order of sending. dry: it is
 * a dry run.
 */
interface Asked {
  dry: boolean
  method: string
  cluster: string
  name: string
  body: string
}

function listen(v: Visit): Asked[] {
  const all: Asked[] = []
  v.page.on("request", (request) => {
    const url = new URL(request.url())
    const path = /\/clusters\/([^/]+)\/proxy\/apis\/apps\/v1\/namespaces\/[^/]+\/deployments\/([^/]+)$/.exec(url.pathname)
    if (!path || request.method() === "GET") return
    const [, cluster = "", name = ""] = path
    const body = request.postData() ?? ""
    const dry = request.method() === "DELETE" ? body.includes('"dryRun":["All"]') : url.searchParams.get("dryRun") === "All"
    all.push({ dry, method: request.method(), cluster, name, body })
  })
  return all
}

const marks = (all: Asked[]) => all.map((a) => `${a.method} ${a.cluster}/${a.name}`).sort()

/** Selects rows of the table, such as oak/one. */
async function select(v: Visit, ...rows: string[]): Promise<void> {
  await v.go(`/table?kind=Deployment.apps&q=ns:${namespace}`)
  await v.page.getByRole("row").nth(6).waitFor()
  for (const row of rows) {
    const [cluster = "", name = ""] = row.split("/")
    await v.page.getByRole("row").filter({ hasText: cluster }).filter({ hasText: name }).getByRole("checkbox").check()
  }
  await v.page.getByText(`${rows.length} selected`).waitFor()
}

const act = (v: Visit, name: string) => v.page.getByRole("toolbar").getByRole("button", { name }).click()

describe("an action on several rows in several clusters", () => {
  test("restart: shown by cluster, dry-run in each, and done only in those clusters", async () => {
    const v = await visit()
    const asked = listen(v)
    await select(v, "oak/one", "pine/two")
    await act(v, "Restart")
    const dialog = v.page.getByRole("dialog")
    await dialog.getByRole("heading", { name: /oak/ }).waitFor()
    expect(await dialog.getByRole("heading", { level: 3 }).count()).toBe(2)
    await expect.poll(() => marks(asked)).toEqual(["PATCH oak/one", "PATCH pine/two"])
    expect(asked.every((a) => a.dry)).toBe(true)
    await settled(v.page)
    expect(await axe(v.page)).toEqual([])
    asked.length = 0
    await dialog.getByRole("button", { name: "Restart" }).click()
    await dialog.locator("output", { hasText: "2 done" }).waitFor()
    await expect.poll(() => marks(asked)).toEqual(["PATCH oak/one", "PATCH pine/two"])
    expect(asked.every((a) => !a.dry && a.body.includes("kubectl.kubernetes.io/restartedAt"))).toBe(true)
    const at = "jsonpath={.spec.template.metadata.annotations}"
    await expect.poll(() => inCluster("oak", "get", "deployment", "one", "-o", at)).toContain("restartedAt")
    expect(await inCluster("oak", "get", "deployment", "two", "-o", at)).toBe("")
  })

  test("scale: the refusal of one cluster does not stop the others", async () => {
    const v = await visit()
    const asked = listen(v)
    await select(v, "birch/two", "oak/two", "pine/two")
    await inCluster("pine", "delete", "deployment", "two")
    await act(v, "Scale")
    const dialog = v.page.getByRole("dialog")
    await dialog.getByText(/pine: two: .*not found/).waitFor()
    await dialog.getByRole("spinbutton").fill("3")
    asked.length = 0
    await dialog.getByRole("button", { name: "Scale" }).click()
    await dialog.getByRole("button", { name: "Close" }).last().waitFor()
    await expect.poll(() => marks(asked)).toEqual(["PATCH birch/two", "PATCH oak/two", "PATCH pine/two"])
    // Each request has the UID of the selected object, so that an object created later with its
    // name is not changed.
    expect(asked.map((a) => JSON.parse(a.body))).toEqual(Array(3).fill({ spec: { replicas: 3 }, metadata: { uid: expect.any(String) } }))
    await dialog.getByText(/pine: two: .*not found/).waitFor()
    for (const c of ["birch", "oak"]) {
      await expect.poll(() => inCluster(c, "get", "deployment", "two", "-o", "jsonpath={.spec.replicas}")).toBe("3")
    }
  })

  test("delete: many objects need their number typed, and none is deleted before", async () => {
    const v = await visit()
    const asked = listen(v)
    const all = clusters.flatMap((c) => [`${c}/one`, `${c}/two`])
    await select(v, ...all)
    await act(v, "Delete")
    const dialog = v.page.getByRole("dialog")
    for (const c of clusters) await dialog.getByRole("heading", { name: new RegExp(c) }).waitFor()
    await expect.poll(() => marks(asked)).toEqual(all.map((one) => `DELETE ${one}`))
    expect(asked.every((a) => a.dry)).toBe(true)
    for (const c of clusters) expect((await inCluster(c, "get", "deployments", "-o", "name")).trim().split("\n").length).toBe(2)
    const button = dialog.getByRole("button", { name: "Delete" })
    expect(await button.isDisabled()).toBe(true)
    await dialog.getByRole("textbox").fill("5")
    expect(await button.isDisabled()).toBe(true)
    await dialog.getByRole("textbox").fill("6")
    asked.length = 0
    await button.click()
    await expect.poll(() => marks(asked)).toEqual(all.map((one) => `DELETE ${one}`))
    expect(asked.some((a) => a.dry)).toBe(false)
    for (const c of clusters) await expect.poll(() => inCluster(c, "get", "deployments", "-o", "name")).toBe("")
    await dialog.getByRole("button", { name: "Close" }).last().click()
    await v.page.locator(".grid-nothing").waitFor()
  })
})
