import { test } from "vitest"
import { axe, expect, visit, withBrowser } from "./world"

withBrowser()

test("the palette finds objects of the hub, and opens their own pages", async () => {
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

test("the palette has every page, the actions of the page, and the actions on objects that are typed by name", async () => {
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
    ["why", /Why is an object placed there/],
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
  await v.page.getByRole("button", { name: "Uncordon", exact: true }).waitFor()
  await find("uncordon")
  await option(/^Uncordon$/).click()
  await v.page.getByRole("button", { name: "Cordon", exact: true }).waitFor()
})

test("a user with rights in one namespace finds the objects there, and no request is refused", async () => {
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
