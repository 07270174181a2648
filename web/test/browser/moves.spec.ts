import { test } from "vitest"
import { apply, expect, kubectl, rewrite, visit, withBrowser, writable } from "./world"

withBrowser()

const hello = "Deployment demo/hello"
const placed = () => kubectl("-n", "demo", "get", "resourcebinding", "hello-deployment", "-o", "jsonpath={.spec.clusters}")

test("an edit of a policy says which replicas go where before it is saved", async () => {
  const before = await placed()
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=demo&name=hello")
  await v.page.getByRole("textbox", { name: "Never in" }).first().fill("pine")
  const save = v.page.getByRole("dialog").getByRole("button", { name: "Save" })
  await v.page.route(/\/placementreviews$/, async (route) => {
    if (!route.request().postData()?.includes('"moves"')) return route.continue() // the preview of the page
    // Not before it is known: the diff is there by now.
    await v.page.getByRole("dialog").locator(".diff").waitFor()
    early.push(await save.isEnabled())
    await route.continue()
  })
  const early: boolean[] = []
  await v.page.getByRole("button", { name: "Review and save" }).click()
  const moves = v.page.getByRole("dialog").getByRole("region", { name: /What moves/ })
  const one = moves.getByRole("listitem").filter({ hasText: hello })
  await one.getByText("pine 2 → 0").waitFor()
  await one.getByText("oak 2 → 3").waitFor()
  await moves.getByRole("listitem").filter({ hasText: "Service demo/hello" }).getByText("pine: goes").waitFor()
  expect([...new Set(early), await save.isEnabled()]).toEqual([false, true])
  await v.page.keyboard.press("Escape")
  expect(await placed()).toBe(before)
})

test("an edit that takes much out of a cluster asks for the name of the policy", async () => {
  const one = (i: number) => ({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: `one-${i}`, namespace: "many" } })
  const spec = { resourceSelectors: [{ apiVersion: "v1", kind: "ConfigMap" }], placement: {} }
  const policy = { apiVersion: "policy.orrery.dev/v1alpha1", kind: "PropagationPolicy", metadata: { name: "many", namespace: "many" }, spec }
  const items = [{ apiVersion: "v1", kind: "Namespace", metadata: { name: "many" } }, policy, ...[1, 2, 3, 4, 5, 6].map(one)]
  await apply(JSON.stringify({ apiVersion: "v1", kind: "List", items }))
  try {
    const bound = () => kubectl("-n", "many", "get", "resourcebindings", "-o", "jsonpath={.items[*].spec.clusters[*].name}")
    await expect.poll(async () => (await bound()).split("pine").length - 1, { timeout: 90_000 }).toBe(6)
    const v = await visit()
    await v.go("/policies?kind=PropagationPolicy&namespace=many&name=many")
    await v.page.getByRole("textbox", { name: "Never in" }).first().fill("pine")
    await v.page.getByRole("button", { name: "Review and save" }).click()
    const dialog = v.page.getByRole("dialog")
    await dialog.getByText("pine: goes").nth(5).waitFor()
    const save = dialog.getByRole("button", { name: "Save" })
    expect(await save.isDisabled()).toBe(true)
    await dialog.getByRole("textbox", { name: "Type many to confirm" }).fill("many")
    await save.click()
    await dialog.waitFor({ state: "detached" })
    await expect.poll(bound, { timeout: 90_000 }).not.toContain("pine")
  } finally {
    await kubectl("delete", "namespace", "many", "--wait=false")
  }
})

test("while nobody can say what moves, a draft stays, and saving it asks for its name", async () => {
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=demo&name=hello")
  const never = v.page.getByRole("textbox", { name: "Never in" }).first()
  await never.fill("pine")
  await v.page.route(/\/placementreviews$/, (route) => route.fulfill({ status: 503, body: "nobody knows" }))
  await v.page.getByRole("button", { name: "Review and save" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("nobody knows").waitFor()
  expect(await dialog.getByRole("button", { name: "Save" }).isDisabled()).toBe(true)
  await dialog.getByRole("textbox", { name: "Type hello to confirm" }).waitFor()
  await v.page.keyboard.press("Escape")
  await dialog.waitFor({ state: "detached" })
  expect(await never.inputValue()).toBe("pine")
})

test("other selectors, a policy that takes over, one that goes, and a cluster's labels say what moves", async () => {
  const policy = (name: string, of: string, clusterAffinity: object, priority = 1) => ({
    apiVersion: "policy.orrery.dev/v1alpha1",
    kind: "PropagationPolicy",
    metadata: { name, namespace: "taken" },
    spec: { resourceSelectors: [{ apiVersion: "v1", kind: "ConfigMap", name: of }], priority, placement: { clusterAffinity } },
  })
  const config = (name: string) => ({ apiVersion: "v1", kind: "ConfigMap", metadata: { name, namespace: "taken" } })
  const other = policy("other", "one", { clusterNames: ["birch"] }, 0)
  const policies = [
    other,
    policy("first", "one", { clusterNames: ["pine"] }),
    policy("labelled", "three", { labelSelector: { matchLabels: { moves: "here" } } }),
  ]
  const items = [{ apiVersion: "v1", kind: "Namespace", metadata: { name: "taken" } }, ...policies, ...["one", "two", "three"].map(config)]
  await apply(JSON.stringify({ apiVersion: "v1", kind: "List", items }))
  await kubectl("label", "cluster", "birch", "moves=there")
  const v = await visit()
  const dialog = v.page.getByRole("dialog")
  const told = async (name: string, text: string, ask = () => v.page.getByRole("button", { name: "Review changes" }).click()) => {
    await ask()
    await dialog
      .getByRole("listitem")
      .filter({ hasText: `ConfigMap taken/${name}` })
      .getByText(text)
      .waitFor()
    await v.page.keyboard.press("Escape")
    await dialog.waitFor({ state: "detached" })
  }
  const placed = () => kubectl("-n", "taken", "get", "resourcebindings", "-o", "jsonpath={.items[*].spec.clusters[*].name}")
  try {
    await expect.poll(placed, { timeout: 90_000 }).toBe("pine")
    await v.go("/object?of=PropagationPolicy.policy.orrery.dev/taken/first&tab=yaml")
    await rewrite(v, "name: one", "name: two")
    await told("two", "pine: comes")
    await v.go("/object?kind=PropagationPolicy.policy.orrery.dev&namespace=taken")
    await v.page.getByRole("textbox", { name: "New object" }).click()
    await v.page.keyboard.press("Control+a")
    await v.page.keyboard.insertText(JSON.stringify(policy("second", "one", { clusterNames: ["oak"] }, 2)))
    await told("one", "pine: goes")
    await v.go("/object?of=Cluster.cluster.orrery.dev/birch&tab=yaml")
    await rewrite(v, "moves: there", "moves: here")
    await told("three", "birch: comes")
    await v.go("/object?of=PropagationPolicy.policy.orrery.dev/taken/first")
    await writable(v.page)
    await told("one", "then by other", () => v.page.keyboard.press("Control+d"))
    expect(await placed()).toBe("pine")
  } finally {
    await kubectl("label", "cluster", "birch", "moves-")
    await kubectl("delete", "namespace", "taken", "--wait=false")
  }
})

test("a deletion of which nobody can say what goes with it says so, and asks for the name", async () => {
  const v = await visit()
  await v.page.route(/\/placements\?/, (route) => route.fulfill({ status: 503, body: "" }))
  await v.go("/object?of=Deployment.apps/demo/hello")
  await writable(v.page)
  await v.page.keyboard.press("Control+d")
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("What goes with it, and where, is not known now.").waitFor()
  expect(await dialog.getByRole("button", { name: "Delete" }).isDisabled()).toBe(true)
  await dialog.getByRole("textbox", { name: "Type hello to confirm" }).waitFor()
})

test("who takes a cluster out of the fleet sees where its replicas go, by whichever page", async () => {
  const v = await visit()
  const inTable = async (name: string) => {
    await v.page.getByRole("checkbox", { name: `Select ${name}` }).check()
    await v.page.keyboard.press("Control+d")
  }
  for (const [path, act] of [
    ["/clusters/pine", () => v.page.getByRole("button", { name: "Unjoin" }).click()],
    [
      "/object?of=Cluster.cluster.orrery.dev/pine",
      async () => {
        await writable(v.page)
        await v.page.keyboard.press("Control+d")
      },
    ],
    ["/table?hub=1&kind=Cluster.cluster.orrery.dev", () => inTable("pine")],
  ] as const) {
    await v.go(path)
    await v.page.getByRole("tab", { name: "Overview" }).or(v.page.getByRole("grid")).waitFor()
    await act()
    const dialog = v.page.getByRole("dialog", { name: "Take pine out of the fleet?" })
    const one = dialog.getByRole("listitem").filter({ hasText: hello })
    await one.getByText("pine 2 → 0").waitFor()
    await one.getByText("oak 2 → 3").waitFor()
    await v.page.keyboard.press("Escape")
    await dialog.waitFor({ state: "detached" })
  }
  await inTable("oak")
  const several = v.page.getByRole("dialog", { name: "Delete 2 objects" })
  await several.getByRole("textbox", { name: "Type 2 to confirm" }).waitFor()
  expect(await several.getByRole("button", { name: "Delete" }).isDisabled()).toBe(true)
})

test("a namespace says what goes with it, and asks for its name", async () => {
  const v = await visit()
  await v.go("/object?of=Namespace/demo")
  await writable(v.page)
  await v.page.keyboard.press("Control+d")
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText(/With it go all objects in it, of which \d+ are placed/).waitFor()
  for (const c of ["birch", "oak", "pine"]) await dialog.getByText(c, { exact: true }).waitFor()
  const act = dialog.getByRole("button", { name: "Delete" })
  expect(await act.isDisabled()).toBe(true)
  await dialog.getByRole("textbox").fill("demo")
  await expect.poll(() => act.isEnabled()).toBe(true)
  await v.page.keyboard.press("Escape")
  await v.go("/object?cluster=oak&of=Namespace/demo")
  await writable(v.page)
  await v.page.keyboard.press("Control+d")
  await dialog.getByText(/With it goes all that is in it: at least \d+ objects/).waitFor()
})

test("a namespace of which nothing is placed, and a definition, say that all goes with them", async () => {
  await kubectl("create", "namespace", "bare")
  const v = await visit()
  const dialog = v.page.getByRole("dialog")
  try {
    for (const [of, name, text] of [
      ["Namespace/bare", "bare", "With it go all objects in it, of which 0 are placed in clusters."],
      ["CustomResourceDefinition.apiextensions.k8s.io/clusters.cluster.orrery.dev", "clusters.cluster.orrery.dev", "With it go all objects of its kind"],
    ] as const) {
      await v.go(`/object?of=${of}`)
      await writable(v.page)
      await v.page.keyboard.press("Control+d")
      await dialog.getByText(text).waitFor()
      const act = dialog.getByRole("button", { name: "Delete" })
      expect(await act.isDisabled()).toBe(true)
      await dialog.getByRole("textbox", { name: `Type ${name} to confirm` }).fill(name)
      await expect.poll(() => act.isEnabled()).toBe(true)
      await v.page.keyboard.press("Escape")
    }
  } finally {
    await kubectl("delete", "namespace", "bare", "--wait=false")
  }
})

test("a taint evicts nothing, as the page says", async () => {
  const counts = async (): Promise<Record<string, number>> =>
    Object.fromEntries(JSON.parse(await placed()).map((c: { name: string; replicas: number }) => [c.name, c.replicas]))
  const sum = (all: Record<string, number>) => Object.values(all).reduce((a, b) => a + b, 0)
  const scale = (replicas: number) => kubectl("-n", "demo", "patch", "website", "hello", "--type=merge", "-p", JSON.stringify({ spec: { replicas } }))
  const before = await counts()
  const v = await visit()
  await v.go("/clusters/pine")
  await v.page.getByText("What is placed here stays.").waitFor()
  try {
    await v.page.getByRole("textbox", { name: "Add a taint" }).fill("broken:NoExecute")
    await v.page.getByRole("button", { name: "Add a taint" }).click()
    const remove = v.page.getByRole("button", { name: "Remove the taint broken:NoExecute" })
    await remove.waitFor()
    await scale(sum(before) + 1)
    // It is placed anew, and nothing of pine is gone.
    await expect.poll(counts, { timeout: 90_000 }).toSatisfy((n) => sum(n) === sum(before) + 1)
    expect((await counts()).pine).toBeGreaterThanOrEqual(before.pine!)
    await remove.click()
    await remove.waitFor({ state: "detached" })
  } finally {
    await kubectl("patch", "cluster", "pine", "--type=merge", "-p", '{"spec":{"taints":null}}')
    await scale(sum(before))
    await expect.poll(counts, { timeout: 90_000 }).toEqual(before)
  }
})
