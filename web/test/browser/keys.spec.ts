import { beforeAll, describe, test } from "vitest"
import { apply, demo, expect, kubectl, pages, settled, type Visit, visit, withBrowser, writable } from "./world"

withBrowser()

const table = "/table?kind=Deployment.apps&q=ns:demo"
const palette = (v: Visit) => v.page.getByRole("dialog", { name: "Commands" })
const focused = (v: Visit) => v.page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.tagName)
const where = (v: Visit) => new URL(v.page.url()).pathname + new URL(v.page.url()).search
const at = (v: Visit, name: string) => new URL(v.page.url()).searchParams.get(name)

/** Opens the table and selects its first row. */
async function first(v: Visit): Promise<void> {
  await v.go(table)
  await v.page.getByRole("link", { name: "hello" }).first().waitFor()
  await v.page.keyboard.press("j")
  await v.page.locator(".grid-row.current", { hasText: "hello" }).waitFor()
}

describe("in the table", () => {
  let v: Visit
  beforeAll(async () => {
    v = await visit()
  })

  test.each([
    ["d", "overview"],
    ["y", "yaml"],
    ["e", "yaml"],
    ["l", "logs"],
    ["s", "shell"],
  ])("%s opens the row's %s, and going back comes back", async (key, tab) => {
    await first(v)
    await v.page.keyboard.press(key)
    await v.page.locator("h1", { hasText: "hello" }).waitFor()
    expect([at(v, "cluster"), at(v, "of"), at(v, "tab")]).toEqual(["birch", demo.of, tab])
    expect(await v.page.getByRole("tab", { selected: true }).textContent()).toMatch(new RegExp(tab, "i"))
    // The new page has the focus, so that Tab continues there and not at the beginning.
    await expect.poll(() => focused(v)).not.toBe("BODY")
    await v.page.goBack()
    await v.page.getByRole("link", { name: "hello" }).first().waitFor()
    expect(where(v)).toContain("/table?")
  })

  test("/ focuses the query, in which keys are characters; Escape returns to the rows", async () => {
    await first(v)
    await v.page.keyboard.press("/")
    await expect.poll(() => focused(v)).toBe("Query")
    const typed = "dlsey:/?jxgt"
    await v.page.keyboard.type(typed)
    expect(await v.page.getByRole("combobox", { name: "Query" }).inputValue()).toBe(typed)
    expect(await v.page.getByRole("dialog").count()).toBe(0)
    await v.page.waitForURL(/dlsey/)
    expect(where(v)).toMatch(/^\/console\/table\?kind=Deployment/)
    await v.page.keyboard.press("Control+a")
    await v.page.keyboard.type("ns:demo hello")
    await v.page.keyboard.press("Escape")
    await v.page.keyboard.press("Escape")
    await expect.poll(() => focused(v)).toBe("Deployment in all clusters")
    await v.page.getByRole("link", { name: "hello" }).first().waitFor()
    await v.page.keyboard.press("j")
    await v.page.keyboard.press("y")
    await v.page.locator("h1", { hasText: "hello" }).waitFor()
  })

  test("the cursor follows its row, and disappears with it", async () => {
    const map = (name: string) => apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: cursor-${name}, namespace: demo}}`)
    await map("m")
    await map("z")
    await v.go("/table?hub=1&kind=ConfigMap&q=cursor-")
    await v.page.getByRole("link", { name: "cursor-m" }).waitFor()
    await v.page.keyboard.press("j")
    const current = v.page.locator(".grid-row.current")
    await current.getByText("cursor-m").waitFor()
    await map("a")
    await v.page.getByRole("link", { name: "cursor-a" }).waitFor()
    expect(await current.textContent()).toContain("cursor-m")
    await v.page.keyboard.press("Control+d")
    await v.page.getByRole("dialog").getByText("demo/cursor-m").waitFor()
    await v.page.keyboard.press("Escape")
    await kubectl("delete", "configmap", "cursor-m", "-n", "demo")
    await v.page.getByRole("link", { name: "cursor-m" }).waitFor({ state: "detached" })
    await expect.poll(() => current.count()).toBe(0)
    await v.page.keyboard.press("Control+d")
    expect(await v.page.getByRole("dialog").count()).toBe(0)
    await kubectl("delete", "configmap", "cursor-a", "cursor-z", "-n", "demo")
  })

  test("a header sorts by keyboard as well", async () => {
    await v.go(table)
    await v.page.getByRole("link", { name: "hello" }).first().waitFor()
    const cluster = v.page.getByRole("columnheader", { name: "Cluster" })
    for (let i = 0; i < 60 && (await cluster.locator(":focus").count()) === 0; i++) await v.page.keyboard.press("Tab")
    await v.page.keyboard.press("Enter")
    await v.page.keyboard.press("Enter")
    await v.page.waitForURL(/sort=cluster\+desc/)
    await expect.poll(() => cluster.getAttribute("aria-sort")).toBe("descending")
  })
})

describe("on the page of an object", () => {
  test("each key opens a tab, except while the user types or a dialog is open", async () => {
    const v = await visit()
    await v.go(pages.object!)
    await writable(v.page)
    for (const [key, tab] of [
      ["y", "YAML"],
      ["l", "Logs"],
      ["s", "Shell"],
      ["h", "History"],
      ["e", "YAML"],
      ["d", "Overview"],
      ["y", "YAML"],
    ] as const) {
      await v.page.keyboard.press(key)
      await v.page.getByRole("tab", { name: tab, selected: true }).waitFor()
    }
    const editor = v.page.locator(".cm-content")
    await editor.click()
    await v.page.keyboard.type("dls?")
    expect(await v.page.getByRole("tab", { selected: true }).textContent()).toBe("YAML")
    expect(await editor.textContent()).toContain("dls?")
    await v.go(pages.object!)
    await writable(v.page)
    await v.page.keyboard.press("Control+d")
    const dialog = v.page.getByRole("dialog")
    await dialog.getByText("in the cluster birch").or(dialog.getByText("in the cluster oak")).waitFor()
    for (const key of ["y", "?", ":"]) await v.page.keyboard.press(key)
    expect(await v.page.getByRole("dialog").count()).toBe(1)
    expect(at(v, "tab")).toBe(null)
    await v.page.keyboard.press("Escape")
    await dialog.waitFor({ state: "detached" })
    await v.page.keyboard.press("y")
    await v.page.getByRole("tab", { name: "YAML", selected: true }).waitFor()
  })
})

test.each([
  ["placements", "/placements", /placements\?of=/],
  ["policies", "/policies", /policies\?kind=/],
  ["fleet", "/", /clusters\//],
  ["matrix", pages.matrix!, /clusters\//],
])("in the list of the page %s j and k move, Enter opens, and / filters where there is a filter", async (_, path, opened) => {
  const v = await visit()
  await v.go(path)
  await settled(v.page)
  await v.page.locator("#content [data-row]").first().waitFor()
  const at = () => v.page.evaluate(() => [...document.querySelectorAll("#content [data-row]")].findIndex((row) => row.contains(document.activeElement)))
  const pressed = async (key: string) => {
    await v.page.keyboard.press(key)
    return at()
  }
  expect([await pressed("j"), await pressed("j"), await pressed("k")]).toEqual([0, 1, 0])
  expect(await pressed("G")).toBe((await v.page.locator("#content [data-row]").count()) - 1)
  const filter = v.page.locator("#content input[type=search]")
  if (await filter.count()) {
    await v.page.keyboard.press("/")
    expect(await filter.evaluate((e) => e === document.activeElement)).toBe(true)
    expect(await pressed("Enter")).toBe(0)
  }
  await v.page.keyboard.press("Enter")
  await v.page.waitForURL(opened)
})

test("w and the palette act on the row that has the focus in placements", async () => {
  const v = await visit()
  await v.go("/placements?q=hello")
  await v.page.locator("#content [data-row]").first().waitFor()
  await v.page.keyboard.press("j")
  await v.page.keyboard.press("Control+k")
  await palette(v)
    .getByRole("option", { name: /Template/ })
    .waitFor()
  await v.page.keyboard.press("Escape")
  await palette(v).waitFor({ state: "detached" })
  await v.page.keyboard.press("w")
  await v.page.waitForURL(/why\?of=Deployment.apps%2Fdemo%2Fhello/)
})

test("on the page of an object / opens the palette, because the page has no search field", async () => {
  const v = await visit()
  await v.go(pages.object!)
  await settled(v.page)
  await v.page.keyboard.press("/")
  await palette(v).getByRole("combobox").waitFor()
  expect(await palette(v).getByRole("combobox").inputValue()).toBe("")
})

test("a selection list uses letters to select an option, not as keys of the page", async () => {
  const v = await visit()
  await v.go(`${pages.object}&tab=relations`)
  await settled(v.page)
  const depth = v.page.getByRole("combobox", { name: "Depth" })
  await depth.focus()
  await v.page.keyboard.press("4")
  await expect.poll(() => depth.textContent()).toBe("4 steps")
  for (const key of ["d", "y", "?"]) await v.page.keyboard.press(key)
  expect(await v.page.getByRole("dialog").count()).toBe(0)
  expect(at(v, "tab")).toBe("relations")
})

describe.each([
  ["table", table],
  ["object", pages.object!],
])("on the page %s", (_, path) => {
  test("? shows the keys that work there, : takes a command, and Escape closes each and returns the focus", async () => {
    const v = await visit()
    await v.go(path)
    await settled(v.page)
    const link = v.page.getByRole("link", { name: "Policies" })
    await link.focus()
    await v.page.keyboard.press("?")
    const keys = v.page.getByRole("dialog", { name: "Keys" })
    await keys.getByText("Describe").or(keys.getByText("Overview")).first().waitFor()
    await v.page.keyboard.press("Escape")
    await keys.waitFor({ state: "detached" })
    await expect.poll(() => link.evaluate((e) => e === document.activeElement)).toBe(true)

    await v.page.keyboard.press(":")
    const box = palette(v).getByRole("combobox")
    await box.waitFor()
    expect(await box.inputValue()).toBe(":")
    await v.page.keyboard.press("Escape")
    await palette(v).waitFor({ state: "detached" })
    expect(where(v)).toBe(`/console${path}`)
    await expect.poll(() => link.evaluate((e) => e === document.activeElement)).toBe(true)

    await v.page.keyboard.press(":")
    await box.waitFor()
    await v.page.keyboard.type("po demo @oak")
    await palette(v)
      .getByRole("option", { selected: true, name: /Pod in demo/ })
      .waitFor()
    await v.page.keyboard.press("Enter")
    await v.page.waitForURL(/kind=Pod/)
    expect(at(v, "q")).toBe("namespace:demo cluster:oak")
  })

  test("Ctrl+K and ⌘K open the palette anywhere, even in a text field", async () => {
    const v = await visit()
    await v.go(path)
    await settled(v.page)
    for (const key of ["Control+k", "Meta+k"]) {
      await v.page.keyboard.press(key)
      await palette(v).getByRole("combobox").waitFor()
      await v.page.keyboard.type("d?:")
      expect(await palette(v).getByRole("combobox").inputValue()).toBe("d?:")
      await v.page.keyboard.press("Escape")
      await palette(v).waitFor({ state: "detached" })
    }
    await v.go("/table")
    await v.page.getByRole("combobox", { name: "Query" }).focus()
    await v.page.keyboard.press("Control+k")
    await palette(v).getByRole("combobox").waitFor()
    await v.page.keyboard.type("pine")
    await palette(v).getByRole("option", { name: "pine", exact: true }).waitFor()
    await v.page.keyboard.press("ArrowDown")
    await palette(v).getByRole("option", { name: "pine", exact: true }).click()
    await v.page.locator("h1", { hasText: "pine" }).waitFor()
  })
})

test.each([
  ["a button", "/clusters/oak", "Unjoin", undefined],
  ["an item of a menu", "/table", "Views", /Save this view/],
])("a dialog of %s returns the focus to it", async (_, path, name, item) => {
  const v = await visit()
  await v.go(path)
  const button = v.page.getByRole("button", { name, exact: true })
  await button.focus()
  await v.page.keyboard.press("Enter")
  if (item) {
    await v.page.getByRole("menuitem", { name: item }).focus()
    await v.page.keyboard.press("Enter")
  }
  await v.page.getByRole("dialog").waitFor()
  await v.page.keyboard.press("Escape")
  await v.page.getByRole("dialog").waitFor({ state: "detached" })
  await expect.poll(() => button.evaluate((e) => e === document.activeElement)).toBe(true)
})
