import { test } from "vitest"
import { expect, kubectl, pid, visit, visitSignedOut, withBrowser } from "./world"

withBrowser()

test("after the hub is killed, rows are stale, never current, until the tab reconnects by itself", async () => {
  const v = await visit()
  await v.go("/table?kind=Deployment.apps&q=web")
  await v.page.getByText("web", { exact: true }).first().waitFor()
  const robot = await visitSignedOut()
  await kubectl("create", "serviceaccount", "robot", "-n", "shop").catch(() => {})
  const token = (await kubectl("create", "token", "robot", "-n", "shop")).trim()
  await robot.go("/changes")
  await robot.page.locator("input[type=password]").fill(token)
  await robot.page.getByRole("button", { name: "Sign in" }).click()
  await robot.page.locator("#content").waitFor()

  // Records each change of the state of the rows: stale or live.
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
  // A hub that just started may disconnect once more.
  const states = () => v.page.evaluate(() => (window as unknown as { states: string[] }).states.join())
  await expect.poll(states).toMatch(/^live(,stale,live)+$/)

  // Tokens are not stored, so their sessions end with the hub.
  await robot.page.locator(".sign-in").waitFor({ timeout: 120_000 })
  expect(new URL(robot.page.url()).pathname).toBe("/console/changes")
}, 900_000)
