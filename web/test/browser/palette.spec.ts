import { test } from "vitest"
import { axe, expect, visit, withBrowser } from "./world"

withBrowser()

test("the palette finds what is at the hub, and leads to its own page", async () => {
  const v = await visit()
  const find = async (text: string) => {
    await v.page.keyboard.press("Control+k")
    await v.page.getByRole("combobox").fill(text)
    return v.page.getByRole("group", { name: "Objects of the hub" }).getByRole("option")
  }
  const found = await find("hello")
  await found.filter({ hasText: "PropagationPolicy · demo" }).waitFor()
  await found.filter({ hasText: "Deployment · demo" }).waitFor()
  expect(await axe(v.page)).toEqual([])
  await found.filter({ hasText: "PropagationPolicy" }).click()
  await v.page.waitForURL(/policies\?kind=PropagationPolicy&namespace=demo&name=hello/)
  await (await find("hello")).filter({ hasText: "Deployment" }).click()
  await v.page.waitForURL(/object\?of=Deployment.apps%2Fdemo%2Fhello/)
  expect(v.seen.failures).toEqual([])
})

test("and for who has rights in one namespace what is hers, with nothing refused on the way", async () => {
  const v = await visit("alice")
  await v.page.keyboard.press("Control+k")
  await v.page.getByRole("combobox").fill("mirror-in")
  await v.page.getByRole("option", { name: /mirror-in-pine OverridePolicy · shop/ }).waitFor()
  await v.page.getByRole("combobox").fill("vault")
  await v.page.getByRole("option", { name: /Search every kind/ }).waitFor()
  await v.page.waitForLoadState("networkidle")
  expect(await v.page.getByRole("group", { name: "Objects of the hub" }).count()).toBe(0)
  expect(v.seen.failures).toEqual([])
  expect(v.seen.bodies.filter((b) => b.includes("hidden-vault"))).toEqual([])
})
