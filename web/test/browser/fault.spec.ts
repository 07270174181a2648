import { afterEach, beforeAll, describe, test } from "vitest"
import { demo, expect, pages, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

// Requests of a page may fail, at first or for a while, and its code may fail to load. The page
// must show that, and continue when the user tries again.

const unanswered = "The hub does not answer"
const code = "**/console/assets/*.js"
const tabs = ["yaml", "events", "relations", "logs", "shell", "history"].map((tab): [string, string] => [tab, `${pages.template}&tab=${tab}`])

/** Navigates without loading the page again. */
const follow = (v: Visit, path: string) => v.page.evaluate((to) => history.pushState(null, "", to), `/console${path}`)

const answers = "**/console/api/hub/**"

/**
 * Tries again until no request is missing. The button may vanish meanwhile, when an answer
 * arrives by itself.
 */
async function again(v: Visit): Promise<void> {
  const button = v.page.getByRole("button", { name: "Try again" }).first()
  const missing = async () => {
    if (await button.isVisible()) await button.click({ timeout: 500 }).catch(() => {})
    // If another request is missing by then, the button is there again.
    await v.page.locator(".skeleton").first().waitFor({ state: "detached", timeout: 20_000 })
    const titled = await v.page.locator("h1").first().isVisible()
    return (await v.page.getByText(unanswered).count()) + (titled ? 0 : 1)
  }
  await expect.poll(missing, { timeout: 180_000 }).toBe(0)
}

/**
 * Lets requests fail until the returned function is called. The route stays until the end of the
 * test: a request that begins while a route is removed may never be answered.
 */
async function failing(v: Visit, requests: string | RegExp): Promise<() => void> {
  let fails = true
  await v.page.route(requests, (route) => (fails ? route.abort() : route.continue()).catch(() => {}))
  return () => {
    fails = false
  }
}

let v: Visit
beforeAll(async () => {
  v = await visit()
})
afterEach(() => v.page.unrouteAll({ behavior: "ignoreErrors" }))

/** The pages that send requests, and the pages whose code is loaded separately. */
const asking = [...Object.entries(pages).filter(([name]) => !["join", "override"].includes(name)), ...tabs]
const coded = [...Object.entries(pages).filter(([, path]) => !path.includes("?") || path.startsWith("/object")), ...tabs]

describe("a page", () => {
  test.each(asking)("shows that requests fail, and continues when they are answered: %s", async (_, path) => {
    const heal = await failing(v, answers)
    await v.go(path)
    await v.page.getByText(unanswered).first().waitFor()
    await v.page.locator(".skeleton").first().waitFor({ state: "detached" })
    heal()
    await again(v)
  })

  test.each(coded)("shows that its code does not load, and reloads it: %s", async (_, path) => {
    await v.go(path === pages.join ? "/changes" : "/join")
    await settled(v.page)
    const heal = await failing(v, code)
    await follow(v, path)
    const broken = v.page.getByRole("alert").filter({ hasText: "This page broke" })
    await broken.first().waitFor()
    heal()
    await broken.first().getByRole("button", { name: "Reload" }).click()
    await broken.waitFor({ state: "detached" })
    await settled(v.page)
  })
})

test.each([
  ["relations", /\/graph\?/],
  ["history", /history=true/],
  ["logs", /\/pods\?/],
])("the tab %s shows that its content cannot be requested", async (tab, question) => {
  const heal = await failing(v, question)
  await v.go(`/object?cluster=oak&of=${demo.of}&tab=${tab}`)
  await v.page.getByText(unanswered).first().waitFor()
  await settled(v.page)
  heal()
  await again(v)
})

test("a palette whose code does not load leaves the page usable", async () => {
  const palette = "**/assets/Palette-*.js"
  await v.page.route(palette, (route) => route.abort())
  await v.go("/")
  await settled(v.page)
  await v.page.keyboard.press("Control+k")
  const dialog = v.page.getByRole("dialog")
  await dialog.getByRole("button", { name: "Reload" }).waitFor()
  await v.page.keyboard.press("Escape")
  await dialog.waitFor({ state: "detached" })
  await v.page.locator(".tile").first().waitFor()
})

describe("the picture of relations", () => {
  const relations = `/object?cluster=oak&of=${demo.of}&tab=relations`
  const never = () => {}

  test("says that the wait is long", async () => {
    const v = await visit()
    await v.page.clock.install()
    let asked = 0
    await v.page.route(/\/graph\?/, (route) => (asked++ === 0 ? undefined : route.continue()))
    const question = v.page.waitForRequest(/\/graph\?/)
    await v.go(relations)
    await question
    await v.page.locator(".skeleton").waitFor()
    await v.page.clock.fastForward(11_000)
    await v.page.getByText("Still waiting").waitFor()
    await v.page.getByRole("button", { name: "Reload" }).click()
    await v.page.locator(".graph .card").first().waitFor()
  })

  test.each([
    ["fails", (route: { abort(): Promise<void> }) => route.abort()],
    ["never comes", never],
  ])("is drawn when the worker's code %s", async (_, fate) => {
    const v = await visit()
    await v.page.clock.install()
    await v.page.route(/\/worker-[^/]*\.js/, fate)
    await v.go(relations)
    await v.page.getByText("As a list").waitFor()
    await v.page.clock.fastForward(6_000)
    await v.page.locator(".graph .card").first().waitFor()
  })
})
