import { mkdirSync } from "node:fs"
import { test } from "vitest"
import { pages, settled, sizes, visit, wear, withBrowser } from "./world"

withBrowser()

const only = process.env.SCREENSHOTS === "1" ? undefined : process.env.SCREENSHOTS?.split(",")
const folder = new URL("../../screenshots/", import.meta.url).pathname

test.each(["light", "dark"] as const)(
  "pictures of every page in %s",
  async (theme) => {
    for (const [size, viewport] of Object.entries(sizes)) {
      mkdirSync(`${folder}${size}-${theme}`, { recursive: true })
      const v = await visit(undefined, viewport)
      await wear(v.page, theme)
      for (const [name, path] of Object.entries(pages)) {
        if (only && !only.includes(name)) continue
        await v.go(path)
        await settled(v.page)
        await v.page.waitForLoadState("networkidle").catch(() => {})
        await v.page.screenshot({ path: `${folder}${size}-${theme}/${name}.png` })
      }
      await v.context.close()
    }
  },
  300_000,
)
