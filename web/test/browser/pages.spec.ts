import { beforeAll, describe, test } from "vitest"
import { axe, expect, pages, settled, sizes, type Visit, visit, wear, withBrowser } from "./world"

withBrowser()

describe.each(["light", "dark"] as const)("%s", (theme) => {
  let v: Visit
  beforeAll(async () => {
    v = await visit()
    await wear(v.page, theme)
  })

  test.each(Object.entries(pages))("axe finds nothing wrong with %s", async (_, path) => {
    v.seen.errors.length = 0
    v.seen.failures.length = 0
    await v.go(path)
    await settled(v.page)
    expect(await axe(v.page)).toEqual([])
    expect(v.seen).toMatchObject({ errors: [], failures: [] })
  })
})

describe.each([
  ["en", "light"],
  ["zh", "dark"],
] as const)("on a phone, in %s and %s", (language, theme) => {
  let v: Visit
  beforeAll(async () => {
    v = await visit(undefined, sizes.phone)
    await wear(v.page, theme)
    await v.page.evaluate((l) => localStorage.setItem("orrery.language", l), language)
  })

  test.each(Object.entries(pages))("%s is as wide as that, and axe finds nothing wrong with it", async (_, path) => {
    await v.go(path)
    await settled(v.page)
    expect(await v.page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
    expect(await axe(v.page)).toEqual([])
  })
})

test("each place is reached by keyboard alone", async () => {
  const v = await visit()
  await v.page.keyboard.press("Tab")
  expect(await v.page.evaluate(() => document.activeElement?.className)).toBe("skip")
  await v.page.getByRole("link", { name: "Policies" }).focus()
  await v.page.keyboard.press("Enter")
  await v.page.getByRole("heading", { level: 1, name: "Policies" }).waitFor()
})
