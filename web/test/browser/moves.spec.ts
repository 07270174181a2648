import { test } from "vitest"
import { apply, expect, kubectl, rewrite, visit, withBrowser, writable } from "./world"

withBrowser()

const hello = "Deployment demo/hello"
const placed = () => kubectl("-n", "demo", "get", "resourcebinding", "hello-deployment", "-o", "jsonpath={.spec.clusters}")

test("an edit of a policy shows which replicas move before it is saved", async () => {
  const before = await placed()
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=demo&name=hello")
  await v.page.getByRole("textbox", { name: "Never in" }).first().fill("pine")
  const save = v.page.getByRole("dialog").getByRole("button", { name: "Save" })
  await v.page.route(/\/placementreviews$/, async (route) => {
    if (!route.request().postData()?.includes('"moves"')) return route.continue() // the preview of the page
    // Delays the answer until the diff is shown.
    await v.page.getByRole("dialog").locator(".diff").waitFor()
    early.push(await save.isEnabled())
    await route.continue()
  })
  const early: boolean[] = []
  await v.page.getByRole("button", { name: "Review and save" }).click()
  const moves = v.page.getByRole("dialog").getByRole("region", { name: /What will move/ })
  const one = moves.getByRole("listitem").filter({ hasText: hello })
  await one.getByText("pine 2 → 0").waitFor()
  await one.getByText("oak 2 → 3").waitFor()
  await moves.getByRole("listitem").filter({ hasText: "Service demo/hello" }).getByText("pine: removed").waitFor()
  expect([...new Set(early), await save.isEnabled()]).toEqual([false, true])
  await v.page.keyboard.press("Escape")
  expect(await placed()).toBe(before)
})

test("an edit that removes many objects from a cluster needs the name of the policy typed", async () => {
  const one = (i: number) => ({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: `one-${i}`, namespace: "many" } })
  const spec = { resourceSelectors: [{ apiVersion: "v1", kind: "ConfigMap" }], placement: {} }
  const policy = { apiVersion: "policy.orrery.dev/v1alpha1", kind: "PropagationPolicy", metadata: { name: "many", namespace: "many" }, spec }
  const items = [{ apiVersion: "v1", kind: "Namespace", metadata: { name: "many" } }, policy, ...[1, 2, 3, 4, 5, 6].map(one)]
  await apply(JSON.stringify({ apiVersion: "v1", kind: "List", items }))
  try {
    const bound = () => kubectl("-n", "many", "get", "resourcebindings", "-o", "jsonpath={.items[*].spec.clusters[*].name}")
    await expect.poll(async () => (await bound()).split("pine").length - 1, { timeout: 180_000 }).toBe(6)
    const v = await visit()
    await v.go("/policies?kind=PropagationPolicy&namespace=many&name=many")
    await v.page.getByRole("textbox", { name: "Never in" }).first().fill("pine")
    await v.page.getByRole("button", { name: "Review and save" }).click()
    const dialog = v.page.getByRole("dialog")
    await dialog.getByText("pine: removed").nth(5).waitFor()
    const save = dialog.getByRole("button", { name: "Save" })
    expect(await save.isDisabled()).toBe(true)
    await dialog.getByRole("textbox", { name: "Type many to confirm" }).fill("many")
    await save.click()
    await dialog.waitFor({ state: "detached" })
    await expect.poll(bound, { timeout: 180_000 }).not.toContain("pine")
  } finally {
    await kubectl("delete", "namespace", "many", "--wait=false")
  }
})

test("while the moves are unknown, the draft stays, and saving it needs the name typed", async () => {
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=demo&name=hello")
  const never = v.page.getByRole("textbox", { name: "Never in" }).first()
  await never.fill("pine")
  await v.page.route(/\/placementreviews$/, (route) => route.fulfill({ status: 503, body: "cannot compute the moves" }))
  await v.page.getByRole("button", { name: "Review and save" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("cannot compute the moves").waitFor()
  expect(await dialog.getByRole("button", { name: "Save" }).isDisabled()).toBe(true)
  await dialog.getByRole("textbox", { name: "Type hello to confirm" }).waitFor()
  await v.page.keyboard.press("Escape")
  await dialog.waitFor({ state: "detached" })
  expect(await never.inputValue()).toBe("pine")
})

test("moves are shown for other selectors, for a policy that takes over, for a deleted one, and for a cluster's labels", async () => {
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
  const showsMove = async (name: string, text: string, ask = () => v.page.getByRole("button", { name: "Review changes" }).click()) => {
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
    await expect.poll(placed, { timeout: 180_000 }).toBe("pine")
    await v.go("/object?of=PropagationPolicy.policy.orrery.dev/taken/first&tab=yaml")
    await rewrite(v, "name: one", "name: two")
    await showsMove("two", "pine: added")
    await v.go("/object?kind=PropagationPolicy.policy.orrery.dev&namespace=taken")
    await v.page.getByRole("textbox", { name: "New object" }).click()
    await v.page.keyboard.press("Control+a")
    await v.page.keyboard.insertText(JSON.stringify(policy("second", "one", { clusterNames: ["oak"] }, 2)))
    await showsMove("one", "pine: removed")
    await v.go("/object?of=Cluster.cluster.orrery.dev/birch&tab=yaml")
    await rewrite(v, "moves: there", "moves: here")
    await showsMove("three", "birch: added")
    await v.go("/object?of=PropagationPolicy.policy.orrery.dev/taken/first")
    await writable(v.page)
    await showsMove("one", "then placed by other", () => v.page.keyboard.press("Control+d"))
    expect(await placed()).toBe("pine")
  } finally {
    await kubectl("label", "cluster", "birch", "moves-")
    await kubectl("delete", "namespace", "taken", "--wait=false")
  }
})

test("a deletion whose effects are unknown says so, and needs the name typed", async () => {
  const v = await visit()
  await v.page.route(/\/placements\?/, (route) => route.fulfill({ status: 503, body: "" }))
  await v.go("/object?of=Deployment.apps/demo/hello")
  await writable(v.page)
  await v.page.keyboard.press("Control+d")
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("It could not be found out which other objects are deleted with it, and where.").waitFor()
  expect(await dialog.getByRole("button", { name: "Delete" }).isDisabled()).toBe(true)
  await dialog.getByRole("textbox", { name: "Type hello to confirm" }).waitFor()
})

test("each page that removes a cluster from the fleet shows where its replicas move", async () => {
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

test("deleting a namespace shows what is deleted with it, and needs its name typed", async () => {
  const v = await visit()
  await v.go("/object?of=Namespace/demo")
  await writable(v.page)
  await v.page.keyboard.press("Control+d")
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText(/All objects in it are deleted, too: \d+ of them are placed/).waitFor()
  for (const c of ["birch", "oak", "pine"]) await dialog.getByText(c, { exact: true }).waitFor()
  const act = dialog.getByRole("button", { name: "Delete" })
  expect(await act.isDisabled()).toBe(true)
  await dialog.getByRole("textbox").fill("demo")
  await expect.poll(() => act.isEnabled()).toBe(true)
  await v.page.keyboard.press("Escape")
  await v.go("/object?cluster=oak&of=Namespace/demo")
  await writable(v.page)
  await v.page.keyboard.press("Control+d")
  await dialog.getByText(/All objects in it are deleted, too: at least \d+ objects/).waitFor()
})

test("deleting a namespace without placed objects, or a definition, says that all its objects are deleted", async () => {
  await kubectl("create", "namespace", "bare")
  const v = await visit()
  const dialog = v.page.getByRole("dialog")
  try {
    for (const [of, name, text] of [
      ["Namespace/bare", "bare", "All objects in it are deleted, too: 0 of them are placed in clusters."],
      ["CustomResourceDefinition.apiextensions.k8s.io/clusters.cluster.orrery.dev", "clusters.cluster.orrery.dev", "All objects of this kind are deleted, too"],
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

test("a taint that evicts shows what moves before it is added", async () => {
  const v = await visit()
  await v.go("/clusters/pine")
  await v.page.getByRole("textbox", { name: "Add a taint" }).fill("broken:NoExecute")
  await v.page.getByRole("button", { name: "Add a taint" }).click()
  const dialog = v.page.getByRole("dialog", { name: "Add the taint broken:NoExecute to pine?" })
  const one = dialog.getByRole("listitem").filter({ hasText: hello })
  await one.getByText("pine 2 → 0").waitFor()
  await one.getByText("oak 2 → 3").waitFor()
  await v.page.keyboard.press("Escape")
  await dialog.waitFor({ state: "detached" })
  expect(await kubectl("get", "cluster", "pine", "-o", "jsonpath={.spec.taints}")).toBe("")
})
