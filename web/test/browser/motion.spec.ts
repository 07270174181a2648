import { beforeAll, describe, test } from "vitest"
import { expect, pages, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

/** The elements of a page that move now, or would when they change. */
const moving = (v: Visit) =>
  v.page.evaluate(() => {
    const lasts = (times: string) => times.split(",").some((time) => Number.parseFloat(time) > 0)
    const would = [...document.querySelectorAll("*")].flatMap((e) =>
      [undefined, "::before", "::after"].flatMap((pseudo) => {
        const s = getComputedStyle(e, pseudo)
        const animated = s.animationName !== "none" && lasts(s.animationDuration)
        return animated || lasts(s.transitionDuration) || s.scrollBehavior === "smooth" ? `${e.tagName}.${e.className}${pseudo ?? ""}` : []
      }),
    )
    const runs = document.getAnimations().map((a) => String((a as CSSTransition).transitionProperty ?? (a as CSSAnimation).animationName))
    return [...new Set([...would, ...runs])]
  })

/**
 * States of pages with elements that can move: a dialog, a menu, the palette, a picture,
 * placeholder lines.
 */
const states: [string, string, (v: Visit) => Promise<void>][] = [
  ...Object.entries(pages).map(([name, path]): [string, string, (v: Visit) => Promise<void>] => [name, path, async () => {}]),
  [
    "a dialog",
    "/clusters/oak",
    async (v) => {
      await v.page.getByRole("button", { name: "Unjoin" }).click()
      await v.page.getByRole("dialog").waitFor()
    },
  ],
  [
    "a menu",
    "/table",
    async (v) => {
      await v.page.getByRole("button", { name: "Columns" }).click()
      await v.page.getByRole("menu").waitFor()
    },
  ],
  [
    "the palette",
    "/",
    async (v) => {
      await v.page.keyboard.press("Control+k")
      await v.page.getByRole("dialog").getByRole("option").first().waitFor()
    },
  ],
  ["a picture", `${pages.object}&tab=relations`, (v) => v.page.locator(".react-flow__node").first().waitFor()],
  ["an editor", `${pages.object}&tab=yaml`, (v) => v.page.locator(".cm-content").click()],
  [
    "grey lines",
    "/changes",
    async (v) => {
      await v.page.route("**/console/api/hub/**", () => {})
      await v.page.getByRole("link", { name: "Policies" }).click()
      await v.page.locator(".skeleton-line").first().waitFor()
    },
  ],
]

describe("a user who prefers reduced motion", () => {
  let v: Visit
  beforeAll(async () => {
    v = await visit()
  })

  test.each(states)("sees no motion: %s", async (_, path, open) => {
    await v.go(path)
    await settled(v.page)
    await open(v)
    expect(await moving(v)).toEqual([])
  })
})

test("without that preference there is motion, so the checks above can fail", async () => {
  const v = await visit()
  await v.page.emulateMedia({ reducedMotion: "no-preference" })
  const [, path, open] = states.at(-1)!
  await v.go(path)
  await settled(v.page)
  await open(v)
  expect(await moving(v)).toContain("breathe")
})
