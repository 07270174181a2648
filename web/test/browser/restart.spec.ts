import { test } from "vitest"
import { expect, kubectl, pid, stranger, visit, withBrowser } from "./world"

withBrowser()

test("a hub that is killed under an open tab: rows are stale, never fresh, until the tab is connected again by itself", async () => {
  const v = await visit()
  await v.go("/table?kind=Deployment.apps&q=web")
  await v.page.getByText("web", { exact: true }).first().waitFor()
  const robot = await stranger()
  await kubectl("create", "serviceaccount", "robot", "-n", "shop").catch(() => {})
  const token = (await kubectl("create", "token", "robot", "-n", "shop")).trim()
  await robot.go("/changes")
  await robot.page.locator("input[type=password]").fill(token)
  await robot.page.getByRole("button", { name: "Sign in" }).click()
  await robot.page.locator("#content").waitFor()

  // What is shown of rows is recorded, as often as it changes: of now, or not.
  await v.page.evaluate(() => {
    const states: string[] = []
    const look = () => {
      const grid = document.querySelector(".grid")
      const state = !grid ? "none" : document.querySelector("[data-state=stale], .stale") ? "stale" : "live"
      if (states.at(-1) !== state) states.push(state)
    }
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true })
    look()
    Object.assign(window, { states })
  })
  process.kill(pid("hub"), "SIGKILL")
  await v.page.locator("[data-state=stale], .stale").first().waitFor()
  await v.page.locator("[data-state=stale], .stale").first().waitFor({ state: "detached", timeout: 240_000 })
  await v.page.getByText("web", { exact: true }).first().waitFor()
  // A hub that has just started may be away once more.
  const states = () => v.page.evaluate(() => (window as unknown as { states: string[] }).states.join())
  await expect.poll(states).toMatch(/^live(,stale,live)+$/)

  // A token is written down nowhere, so its session is over.
  await robot.page.locator(".sign-in").waitFor({ timeout: 120_000 })
  expect(new URL(robot.page.url()).pathname).toBe("/console/changes")
}, 600_000)
