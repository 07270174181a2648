import { test } from "vitest"
import { apply, expect, settled, visit, withBrowser } from "./world"

withBrowser()

test("who has rights in one namespace looks at the hub's objects there, and is told where there is no right to", async () => {
  const v = await visit("alice")
  await v.go("/table?hub=1&kind=Deployment.apps")
  await v.page.getByRole("link", { name: "web", exact: true }).waitFor()
  await v.go("/table?hub=1&kind=Namespace")
  await v.page.getByText("You may not list Namespace at the hub").waitFor()
  expect(v.seen.failures).toEqual([])
})

test("a slash leads to the field by which a page is filtered, and what changed is told of any kind", async () => {
  const v = await visit()
  for (const [path, name] of [
    ["/", "Filter clusters"],
    ["/changes?type=Pod&since=-1d", "Filter changes"],
    ["/table", "Query"],
    ["/placements", "Filter placements"],
    ["/policies", "Filter policies"],
  ] as const) {
    await v.go(path)
    await settled(v.page)
    await v.page.keyboard.press("/")
    await expect.poll(() => v.page.evaluate(() => document.activeElement?.getAttribute("aria-label"))).toBe(name)
  }
  await v.go("/changes?type=Pod&since=-1d")
  await v.page.locator(".change", { hasText: "Pod" }).first().waitFor()
})

test("templates that are deleted at the hub take their copies with them, and it says in which clusters", async () => {
  const v = await visit()
  await v.go("/table?hub=1&kind=Deployment.apps&q=shop/web")
  await v.page.getByRole("checkbox", { name: "Select web" }).check()
  await v.page.getByRole("toolbar").getByRole("button", { name: "Delete" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText(/copies go in 2 clusters/).waitFor()
  expect(await dialog.locator(".notice").textContent()).toContain("oakpine")
  expect(await dialog.getByRole("button", { name: "Delete" }).isDisabled()).toBe(true)
})

test("a field that the API server does not take is marked in the editor", async () => {
  await apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: marked, namespace: shop}, data: {colour: red}}")
  const v = await visit()
  await v.go("/object?of=ConfigMap/shop/marked&tab=yaml")
  await v.page.getByRole("textbox", { name: "YAML of marked" }).click()
  await v.page.keyboard.press("Control+End")
  const mark = v.page.locator(".cm-lint-marker-error")
  await v.page.keyboard.insertText("unheard: [of")
  await mark.waitFor()
  await v.page.keyboard.insertText("]\n")
  // What is read of the text itself is right, and nothing is looked at any more.
  await mark.waitFor({ state: "detached" })
  await v.page.getByRole("button", { name: "Review changes" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog
    .getByText(/unheard/)
    .first()
    .waitFor()
  await dialog.getByRole("button", { name: "Cancel" }).click()
  await mark.waitFor()
})
