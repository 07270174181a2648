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

test("every page is as wide as a phone, in both languages", async () => {
  const v = await visit(undefined, sizes.phone)
  for (const language of ["en", "zh"]) {
    await v.page.evaluate((l) => localStorage.setItem("orrery.language", l), language)
    for (const [name, path] of Object.entries(pages)) {
      await v.go(path)
      await settled(v.page)
      const over = await v.page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      expect(over, `${name} in ${language}`).toBeLessThanOrEqual(0)
    }
  }
})

test("each place is reached by keyboard alone", async () => {
  const v = await visit()
  await v.page.keyboard.press("Tab")
  expect(await v.page.evaluate(() => document.activeElement?.className)).toBe("skip")
  await v.page.getByRole("link", { name: "Policies" }).focus()
  await v.page.keyboard.press("Enter")
  await v.page.getByRole("heading", { level: 1, name: "Policies" }).waitFor()
})
