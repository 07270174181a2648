import { test } from "vitest"
import { expect, kubectl, pid, settled, visit, withBrowser } from "./world"

withBrowser()

test("the fleet has a tile for each cluster, which links to its page", async () => {
  const v = await visit()
  await settled(v.page)
  const tiles = v.page.locator(".tile")
  await tiles.nth(2).waitFor()
  expect((await tiles.locator(".tile-name").allTextContents()).sort()).toEqual(["birch", "oak", "pine"])
  await v.page.getByRole("searchbox", { name: "Filter clusters" }).fill("oa")
  await v.page.locator(".tile").nth(1).waitFor({ state: "detached" })
  await v.page.locator(".tile", { hasText: "oak" }).click()
  await v.page.getByRole("heading", { level: 1, name: "oak" }).waitFor()
  await v.page.getByRole("tab", { name: "Nodes" }).click()
  await v.page.locator("tbody tr").first().waitFor()
  await v.page.getByRole("tab", { name: "Placed here" }).click()
  await v.page.getByRole("link", { name: "Deployment" }).first().waitFor()
})

test("a taint is added and removed, and the page shows it", async () => {
  const v = await visit()
  await v.go("/clusters/birch")
  await v.page.getByRole("button", { name: "Cordon", exact: true }).click()
  await v.page.getByRole("button", { name: "Uncordon", exact: true }).waitFor()
  expect(await kubectl("get", "cluster", "birch", "-o", "jsonpath={.spec.taints}")).toContain("cluster.orrery.dev/unschedulable")
  await v.page.getByRole("button", { name: "Uncordon", exact: true }).click()
  await v.page.getByRole("button", { name: "Cordon", exact: true }).waitFor()
  expect(await kubectl("get", "cluster", "birch", "-o", "jsonpath={.spec.taints}")).not.toContain("unschedulable")
})

test("unjoin shows its effects, and needs the name typed where something is lost", async () => {
  const v = await visit()
  await v.go("/clusters/oak")
  await v.page.getByRole("button", { name: "Unjoin" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("placed here by the hub").waitFor()
  const act = dialog.getByRole("button", { name: "Unjoin" })
  await expect.poll(() => act.isEnabled()).toBe(true)
  await dialog.getByRole("radio", { name: /Delete the workloads/ }).check()
  expect(await act.isEnabled()).toBe(false)
  await dialog.getByRole("textbox").fill("oak")
  expect(await act.isEnabled()).toBe(true)
  await v.page.keyboard.press("Escape")
  await dialog.waitFor({ state: "detached" })
})

test("an unreachable cluster is grey with the time, and its rows are never shown as current", async () => {
  const fleet = await visit()
  const table = await fleet.context.newPage()
  await table.goto(fleet.page.url().replace(/\/console.*/, "/console/table?kind=Deployment.apps&q=cluster:pine"))
  await table.getByText("hello").first().waitFor()
  const tile = fleet.page.locator(".tile", { hasText: "pine" })
  const server = pid("pine-apiserver")
  process.kill(server, "SIGSTOP")
  try {
    await tile
      .and(fleet.page.locator("[data-tone=unknown]"))
      .filter({ hasText: /Unreachable \d+[sm]/ })
      .waitFor()
    expect(await tile.count()).toBe(1)
    // Its rows stay, and the page shows that they are not current.
    await table.getByText("hello").first().waitFor()
    const row = table.locator(".grid-row.last-known", { hasText: "hello" }).first()
    await row.waitFor()
    // The card, the row and the page of the object show the same age as the bar.
    const since = await tile.locator("time.age").getAttribute("datetime")
    const seen = row.locator(`time.age[datetime="${since}"]`)
    await seen.waitFor({ timeout: 120_000 })
    await row.getByRole("link", { name: "hello" }).click()
    await table.locator(`.page-about time.age[datetime="${since}"]`).waitFor()
    await table.locator(".page-about .last-known .mark").waitFor()
    await fleet.go("/clusters/pine")
    await fleet.page.getByText("Orrery cannot reach pine").waitFor()
  } finally {
    process.kill(server, "SIGCONT")
  }
  await fleet.go("/")
  await fleet.page.locator(".tile[data-tone=good]", { hasText: "pine" }).waitFor({ timeout: 300_000 })
}, 900_000)
