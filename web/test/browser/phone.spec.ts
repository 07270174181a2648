import { beforeAll, describe, test } from "vitest"
import { axe, expect, pages, settled, sizes, type Visit, visit, wear, withBrowser } from "./world"

withBrowser()

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

  test.each(Object.entries(pages))("%s is not wider than the screen, and axe finds nothing wrong with it", async (_, path) => {
    await v.go(path)
    await settled(v.page)
    expect(await v.page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
    expect(await axe(v.page)).toEqual([])
  })
})
