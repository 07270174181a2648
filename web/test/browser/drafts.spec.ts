import { test } from "vitest"
import { apply, demo, expect, kubectl, open, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

const template = `/object?of=${demo.of}&tab=yaml`
const editor = (v: Visit) => v.page.getByRole("textbox", { name: /YAML of/ })

/** Writes a comment at the beginning of the object's YAML. */
async function write(v: Visit, comment: string): Promise<void> {
  await v.go(template)
  await v.page.getByRole("button", { name: "Discard" }).waitFor()
  await editor(v).click()
  await v.page.keyboard.press("Control+Home")
  await v.page.keyboard.insertText(`# ${comment}\n`)
  await editor(v).getByText(comment).waitFor()
}

test("a draft survives another tab of the page, another page, and going back; Discard removes it", async () => {
  const v = await visit()
  await write(v, "mine")
  await v.page.getByRole("tab", { name: "Events" }).click()
  await v.page.getByRole("tab", { name: "YAML" }).click()
  await editor(v).getByText("mine").waitFor()
  await v.page.getByRole("link", { name: "Policies" }).click()
  await v.page.getByRole("heading", { name: "Policies" }).waitFor()
  await v.page.goBack()
  await editor(v).getByText("mine").waitFor()
  await v.page.getByRole("button", { name: "Discard" }).click()
  await editor(v).getByText("mine").waitFor({ state: "detached" })
  await v.page.getByRole("tab", { name: "Events" }).click()
  await v.page.getByRole("tab", { name: "YAML" }).click()
  await editor(v).getByText("apiVersion").first().waitFor()
  expect(await editor(v).getByText("mine").count()).toBe(0)
})

test("a draft of a policy survives another page", async () => {
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=demo&name=hello")
  await v.page.getByRole("textbox", { name: "Name" }).first().fill("drafted")
  await v.page.getByRole("link", { name: "Placements" }).click()
  await v.page.getByRole("heading", { name: "Placements" }).waitFor()
  await v.page.goBack()
  await v.page.getByRole("button", { name: "Discard" }).waitFor()
  expect(await v.page.getByRole("textbox", { name: "Name" }).first().inputValue()).toBe("drafted")
})

test("the end of the session during an edit loses nothing of it", async () => {
  const v = await visit()
  await write(v, "unsaved")
  await v.page.evaluate(() => fetch("/console/api/session", { method: "DELETE" }))
  await v.page.locator(".sign-in").waitFor()
  // Like orrery console, which opens the link in another tab.
  const other = await v.context.newPage()
  await open(other)
  await v.page.bringToFront()
  await editor(v).getByText("unsaved").waitFor()
})

test("a sign-in as another user in one tab reloads every tab, without data of the previous user", async () => {
  await apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: of-admin, namespace: hidden-vault}}")
  const v = await visit()
  await v.go("/table?hub=1&kind=ConfigMap&q=of-admin")
  await v.page.getByRole("link", { name: "of-admin" }).waitFor()
  const other = await v.context.newPage()
  await open(other, "alice")
  await v.page.getByRole("button", { name: "Session of alice" }).waitFor()
  await settled(v.page)
  await v.page.getByText("No ConfigMap matches").waitFor()
  expect(await v.page.getByRole("link", { name: "of-admin" }).count()).toBe(0)
  await kubectl("delete", "configmap", "of-admin", "-n", "hidden-vault")
})
