import { beforeAll, test } from "vitest"
import { axe, expect, pages, settled, type Visit, visit, wear, withBrowser } from "./world"

withBrowser()

let v: Visit
beforeAll(async () => {
  v = await visit()
})

test.each(Object.entries(pages))("axe finds nothing wrong with %s, in light and in dark", async (_, path) => {
  v.seen.errors.length = 0
  v.seen.failures.length = 0
  await v.go(path)
  await settled(v.page)
  for (const theme of ["light", "dark"] as const) {
    await wear(v.page, theme)
    expect(await axe(v.page), theme).toEqual([])
  }
  expect(v.seen).toMatchObject({ errors: [], failures: [] })
})

test("each page can be reached by keyboard alone", async () => {
  const v = await visit()
  await v.page.keyboard.press("Tab")
  expect(await v.page.evaluate(() => document.activeElement?.className)).toBe("skip")
  await v.page.getByRole("link", { name: "Policies" }).focus()
  await v.page.keyboard.press("Enter")
  await v.page.getByRole("heading", { level: 1, name: "Policies" }).waitFor()
})
