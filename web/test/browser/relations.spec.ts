import { test } from "vitest"
import { expect, pages, settled, sizes, type Visit, visit, withBrowser } from "./world"

withBrowser()

const params = (v: Visit) => {
  const { searchParams } = new URL(v.page.url())
  return { cluster: searchParams.get("cluster"), of: searchParams.get("of") }
}

test.each([
  ["a desk", sizes.desk],
  ["a phone", sizes.phone],
])("on %s the picture of relations links from object to object", async (_, size) => {
  const v = await visit(undefined, size)
  await v.go(`${pages.object}&tab=relations`)
  const node = (kind: string) => v.page.locator(".react-flow__node", { hasText: kind })
  const link = node("ReplicaSet · oak").getByRole("link")
  const name = (await link.textContent()) ?? ""
  await link.click()
  await v.page.locator("h1", { hasText: name }).waitFor()
  expect(params(v)).toEqual({ cluster: "oak", of: `ReplicaSet.apps/demo/${name}` })
  await v.page.getByText("ReplicaSet.apps", { exact: true }).waitFor()
  await v.page.goBack()
  await node("Deployment · oak").waitFor()
  // Nodes without a page have no link.
  expect(await node("Image").getByRole("link").count()).toBe(0)
  expect(v.seen).toMatchObject({ errors: [], failures: [] })
})

test("the list has the same relations as the picture, and works by keyboard", async () => {
  const v = await visit()
  await v.go(`${pages.object}&tab=relations`)
  await settled(v.page)
  await v.page.getByText("As a list").focus()
  await v.page.keyboard.press("Enter")
  const row = v.page
    .getByRole("region", { name: "Relations" })
    .getByRole("row", { name: /owner.*Pod\// })
    .first()
  const link = row.getByRole("link", { name: /^Pod\// })
  const name = ((await link.textContent()) ?? "").replace("Pod/", "")
  await link.focus()
  await v.page.keyboard.press("Enter")
  await v.page.locator("h1", { hasText: name }).waitFor()
  expect(params(v)).toEqual({ cluster: "oak", of: `Pod/demo/${name}` })
})

test("the picture shows as many steps as are selected", async () => {
  const v = await visit()
  await v.go(`${pages.object}&tab=relations`)
  const node = (kind: string) => v.page.locator(".react-flow__node", { hasText: `${kind} · oak` })
  await node("Pod").first().waitFor()
  await v.page.getByRole("combobox", { name: "Depth" }).click()
  await v.page.getByRole("option", { name: "1 step", exact: true }).click()
  await node("Pod").first().waitFor({ state: "detached" })
  await node("ReplicaSet").waitFor()
})
