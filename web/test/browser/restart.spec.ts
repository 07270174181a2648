import { test } from "vitest"
import { expect, link, pid, visit, withBrowser } from "./world"

withBrowser()

test("a hub that is killed under an open tab: rows are stale, never fresh, and with a new link they are of now", async () => {
  const v = await visit()
  await v.go("/table?kind=Deployment.apps&q=web")
  await v.page.getByText("web", { exact: true }).first().waitFor()
  process.kill(pid("hub"), "SIGKILL")
  // The socket ends, and what is shown says that it is not of now; or the new hub says already that it knows no session.
  await v.page.locator("[data-state=stale], .stale, .sign-in").first().waitFor()
  await v.page.locator(".sign-in").waitFor({ timeout: 50_000 })
  expect(new URL(v.page.url()).pathname).toBe("/console/table")
  const address = v.page.url()
  let url = ""
  await expect.poll(async () => (url = await link().catch(() => "")), { timeout: 50_000, interval: 500 }).not.toBe("")
  await v.page.goto(url)
  await v.page.locator("#content").waitFor()
  await v.page.goto(address)
  await v.page.getByText("web", { exact: true }).first().waitFor()
}, 150_000)
