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

test("the palette has every page and what the page does, and the words for an object that is named after them", async () => {
  const v = await visit()
  const box = v.page.getByRole("dialog").getByRole("combobox")
  const option = (name: string | RegExp) => v.page.getByRole("dialog").getByRole("option", { name })
  const find = async (text: string) => {
    await v.page.keyboard.press("Control+k")
    await box.fill(text)
  }
  for (const [text, name] of [
    ["placements", /^Placements/],
    ["theme", /Theme: Dark/],
    ["sign out", /^Sign out/],
    ["help", /Show the keys/],
    ["why", /Why is an object where it is/],
    ["cordon", "Cordon oak"],
  ] as const) {
    await find(text)
    await option(name).waitFor()
    await v.page.keyboard.press("Escape")
    await box.waitFor({ state: "detached" })
  }
  await find("theme dark")
  await v.page.keyboard.press("Enter")
  await v.page.locator("html[data-theme=dark]").waitFor()
  await find("why hello")
  await option("Why hello is where it is").filter({ hasText: "Deployment" }).click()
  await v.page.waitForURL(/why\?of=Deployment.apps%2Fdemo%2Fhello/)
  await find("cordon birch")
  await option("Cordon birch").waitFor()
  await v.page.keyboard.press("Enter")
  await v.page.waitForURL(/clusters\/birch/)
  await v.page.getByRole("button", { name: "Place again" }).waitFor()
  await find("place again")
  await option(/^Place again/).waitFor()
  await v.page.keyboard.press("Enter")
  await v.page.getByRole("button", { name: "Place nothing new" }).waitFor()
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
