import { test } from "vitest"
import { apply, expect, settled, visit, withBrowser } from "./world"

withBrowser()

test("a user with rights in one namespace sees the hub's objects there, and a notice where access is missing", async () => {
  const v = await visit("alice")
  await v.go("/table?hub=1&kind=Deployment.apps")
  await v.page.getByRole("link", { name: "web", exact: true }).waitFor()
  await v.go("/table?hub=1&kind=Namespace")
  await v.page.getByText("You may not list Namespace on the hub").waitFor()
  expect(v.seen.failures).toEqual([])
})

test("/ leads to the search field of each page, and changes are shown for any kind", async () => {
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

test("deleting templates at the hub shows the clusters in which copies are deleted with them", async () => {
  const v = await visit()
  await v.go("/table?hub=1&kind=Deployment.apps&q=shop/web")
  await v.page.getByRole("checkbox", { name: "Select web" }).check()
  await v.page.getByRole("toolbar").getByRole("button", { name: "Delete" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText(/Copies are deleted in 2 clusters/).waitFor()
  expect(await dialog.locator(".notice").textContent()).toContain("oakpine")
  expect(await dialog.getByRole("button", { name: "Delete" }).isDisabled()).toBe(true)
})

test("a field that the API server refuses is marked in the editor", async () => {
  await apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: marked, namespace: shop}, data: {colour: red}}")
  const v = await visit()
  await v.go("/object?of=ConfigMap/shop/marked&tab=yaml")
  await v.page.getByRole("textbox", { name: "YAML of marked" }).click()
  await v.page.keyboard.press("Control+End")
  const mark = v.page.locator(".cm-lint-marker-error")
  await v.page.keyboard.insertText("unheard: [of")
  await mark.waitFor()
  await v.page.keyboard.insertText("]\n")
  // The text is valid now, and the linter is idle: the refusal below must start it.
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
