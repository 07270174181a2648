import { test } from "vitest"
import { expect, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

/**
 * Deployments in all clusters, the last cluster first, grouped by cluster, with a column that
 * kubectl hides by default.
 */
const address = "kind=Deployment.apps&q=-cluster%3Abirch&sort=cluster+desc&group=cluster&columns=Cluster%2CName%2CContainers"

/** The content of a table: its query, sort order, columns, groups and rows. */
async function shown(v: Visit) {
  await settled(v.page)
  await v.page.locator(".facet").first().waitFor()
  await v.page
    .getByRole("link", { name: "hello" })
    .or(v.page.getByRole("link", { name: "web" }))
    .first()
    .waitFor()
  const header = v.page.getByRole("columnheader")
  return {
    query: await v.page.getByRole("combobox", { name: "Query" }).inputValue(),
    columns: (await header.allTextContents()).slice(1),
    sorted: await header.evaluateAll((all) => all.flatMap((h) => (h.ariaSort && h.ariaSort !== "none" ? `${h.textContent} ${h.ariaSort}` : []))),
    groups: (await v.page.locator(".facet-name").allTextContents()).sort(),
    rows: await v.page.locator(".grid-row").evaluateAll((all) =>
      all.map((row) =>
        [...row.children]
          .slice(1)
          .map((cell) => cell.textContent)
          .join(" "),
      ),
    ),
  }
}

const views = (v: Visit) => v.page.getByRole("button", { name: "Views" })
const search = (v: Visit) => new URL(v.page.url()).search.slice(1)

async function keep(v: Visit, name: string): Promise<void> {
  await views(v).click()
  await v.page.getByRole("menuitem", { name: /Save this view/ }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByLabel("Name of the view").fill(name)
  await dialog.getByRole("button", { name: "Save", exact: true }).click()
  await dialog.waitFor({ state: "detached" })
}

test("a view is saved by name, survives a reload and other pages, and can be deleted", async () => {
  const v = await visit()
  await v.go(`/table?${address}`)
  await expect.poll(async () => (await shown(v)).rows.length).toBeGreaterThan(1)
  const table = await shown(v)
  expect(table).toMatchObject({ query: "-cluster:birch", columns: ["Cluster", "Name", "Containers"], sorted: ["Cluster descending"], groups: ["oak", "pine"] })
  expect(table.rows.length).toBeGreaterThan(1)
  expect(table.rows[0]).toMatch(/^pine/)
  await keep(v, "the last first")
  await v.go("/table?kind=ConfigMap")
  await keep(v, "settings")

  await v.page.reload()
  await views(v).click()
  expect((await v.page.getByRole("menuitem").allTextContents()).slice(0, 2)).toEqual(["settings", "the last first"])
  await v.page.getByRole("menuitem", { name: "the last first" }).click()
  await expect.poll(() => shown(v)).toEqual(table)
  expect(search(v)).toBe(address)

  await v.page.keyboard.press("Control+k")
  await v.page.keyboard.type("settings")
  await v.page.getByRole("option", { name: "settings", exact: true }).click()
  await v.page.waitForURL(/kind=ConfigMap/)

  await views(v).click()
  await v.page.getByRole("menuitem", { name: /Save this view/ }).click()
  await v.page.getByRole("button", { name: "Forget settings" }).click()
  await v.page.getByRole("button", { name: "Forget settings" }).waitFor({ state: "detached" })
  await v.page.reload()
  await views(v).click()
  await v.page.getByRole("menuitem", { name: "the last first" }).waitFor()
  expect(await v.page.getByRole("menuitem", { name: "settings" }).count()).toBe(0)
})

test("the address of a view shows the same table to another user, within that user's rights", async () => {
  const [mine, another, alice] = [await visit(), await visit(), await visit("alice")]
  for (const v of [mine, another, alice]) await v.go(`/table?${address}`)
  const table = await shown(mine)
  await expect.poll(() => shown(another)).toEqual(table)
  const hers = table.rows.filter((row) => / web /.test(row))
  expect(hers.length).toBeGreaterThan(0)
  await expect.poll(() => shown(alice)).toEqual({ ...table, rows: hers })
  expect(alice.seen.failures).toEqual([])
})

test("changes to the table are in its address", async () => {
  const v = await visit()
  await v.go("/table?kind=Deployment.apps")
  await v.page.getByRole("link", { name: "hello" }).first().waitFor()
  await v.page.getByTitle("Sort by Cluster").click()
  await v.page.getByTitle("Sort by Cluster").click()
  await v.page.getByRole("button", { name: "Group" }).click()
  await v.page.getByRole("menuitemradio", { name: "Cluster" }).click()
  await v.page.keyboard.press("Escape")
  await v.page.getByRole("combobox", { name: "Query" }).fill("-cluster:birch")
  await v.page.keyboard.press("Enter")
  await v.page.waitForURL(/q=-cluster/)
  const columns = v.page.getByRole("button", { name: "Columns" })
  await columns.click()
  for (const item of await v.page.getByRole("menuitemcheckbox").all()) {
    const wanted = ["Cluster", "Name", "Containers"].includes((await item.textContent()) ?? "")
    if ((await item.isChecked()) !== wanted) await item.click()
  }
  await v.page.keyboard.press("Escape")
  const actual = new URLSearchParams(search(v))
  const asked = new URLSearchParams(address)
  for (const name of ["kind", "q", "sort", "group"]) expect(actual.get(name), name).toBe(asked.get(name))
  expect(actual.get("columns")?.split(",").sort()).toEqual(["Cluster", "Containers", "Name"])
  expect((await shown(v)).columns).toEqual(["Cluster", "Name", "Containers"])
})
