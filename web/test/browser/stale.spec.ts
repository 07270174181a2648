import { test } from "vitest"
import { expect, visit, withBrowser } from "./world"

withBrowser()

// The browser answers in place of the hub, as a store or a hub that fails.
const away = { status: 503, contentType: "application/json", body: '{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"not now"}' }

// Answers are refreshed every 10 or 15 seconds. The tests wait for that at the same time.
const next = { timeout: 180_000 }

test.concurrent.each([
  ["nodes", "/clusters/oak?tab=nodes", "oak-1", "**/api/v1/nodes?*"],
  ["what is placed", "/clusters/oak?tab=placed", "Deployment", "**/search?*"],
  ["what is mirrored", "/clusters/oak?tab=mirror", "configmaps", "**/mirror"],
  ["placements", "/placements", "hello", "**/resourcebindings?*"],
])(
  "%s that cannot be refreshed are marked as old, and stay",
  async (_, path, shown, question) => {
    const v = await visit()
    // The route stays until the end of the test: a request that begins while a route is removed may
    // never be answered.
    let fails = false
    await v.page.route(question, (route) => (fails ? route.fulfill(away) : route.continue()).catch(() => {}))
    await v.go(path)
    await v.page.locator("#content").getByText(shown, { exact: true }).first().waitFor()
    fails = true
    await v.page.getByText(/Not current: as it was \d+[sm] ago/).waitFor(next)
    await v.page.getByText("not now").first().waitFor()
    expect(await v.page.locator("#content").getByText(shown, { exact: true }).count()).toBeGreaterThan(0)
    fails = false
    await v.page.getByText(/Not current/).waitFor({ state: "detached", ...next })
  },
  600_000,
)

test.concurrent("refused data is not shown any more", async () => {
  const v = await visit()
  const refusal = { ...away, status: 403, body: '{"kind":"Status","code":403,"reason":"Forbidden","message":"not for you"}' }
  let refused = false
  await v.page.route("**/api/v1/nodes?*", (route) => (refused ? route.fulfill(refusal) : route.continue()).catch(() => {}))
  await v.go("/clusters/oak?tab=nodes")
  await v.page.getByText("oak-1").waitFor()
  refused = true
  await v.page.getByText("not for you").waitFor(next)
  expect(await v.page.getByText("oak-1").count()).toBe(0)
})
