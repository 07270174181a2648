import { inject, test } from "vitest"
import { expect, kubectl, link, open, settled, visit, visitSignedOut, withBrowser } from "./world"

withBrowser()

test("a link opens the console once, and is removed from the address bar", async () => {
  const first = await visitSignedOut()
  const url = await open(first.page)
  expect(new URL(first.page.url()).hash).toBe("")
  const cookies = await first.context.cookies()
  expect(cookies).toMatchObject([{ name: "__Host-orrery-session", httpOnly: true, secure: true, sameSite: "Strict" }])
  const kept = await first.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]))
  expect(kept).not.toContain(new URLSearchParams(new URL(url).hash.slice(1)).get("link"))

  const thief = await visitSignedOut()
  await thief.page.goto(url)
  await thief.page.getByText("This link has been used").waitFor()
  expect(await thief.context.cookies()).toEqual([])
  // The first browser keeps its session.
  await first.page.reload()
  await first.page.locator("#content").waitFor()
})

test("a link that is pasted into a tab of the console opens it", async () => {
  const v = await visitSignedOut()
  await v.go("/")
  await v.page.locator(".sign-in").waitFor()
  await v.page.evaluate((url) => location.assign(url), await link())
  await v.page.locator("#content").waitFor()
  expect(new URL(v.page.url()).hash).toBe("")
})

test("a link older than half a minute opens nothing", async () => {
  const { url, made } = inject("oldLink")
  const v = await visitSignedOut()
  await v.page.waitForTimeout(Math.max(0, made + 31_000 - Date.now()))
  await v.page.goto(url)
  await v.page.locator(".sign-in").waitFor()
  expect(await v.context.cookies()).toEqual([])
})

test("a bearer token is exchanged for a session, and a wrong one is refused", async () => {
  await kubectl("create", "serviceaccount", "robot", "-n", "shop").catch(() => {})
  const token = (await kubectl("create", "token", "robot", "-n", "shop")).trim()
  const v = await visitSignedOut()
  await v.go("/changes")
  await v.page.locator("input[type=password]").fill("no-token")
  await v.page.getByRole("button", { name: "Sign in" }).click()
  await v.page.locator(".field-error").waitFor()
  await v.page.locator("input[type=password]").fill(token)
  await v.page.getByRole("button", { name: "Sign in" }).click()
  await v.page.locator("#content").waitFor()
  expect(new URL(v.page.url()).pathname).toBe("/console/changes")
  const stored = await v.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))
  expect(stored).not.toContain(token)
})

test("signing out ends the session in every tab", async () => {
  const v = await visit()
  const other = await v.context.newPage()
  await other.goto(v.page.url())
  await other.locator("#content").waitFor()
  await v.page.getByRole("button", { name: /^Session of/ }).click()
  await v.page.getByRole("menuitem", { name: "Sign out" }).click()
  await v.page.locator(".sign-in").waitFor()
  await other.locator(".sign-in").waitFor()
})

test("without a session only the sign-in page is shown, and the API refuses requests", async () => {
  const v = await visitSignedOut()
  await v.go("/table")
  await v.page.locator(".sign-in").waitFor()
  expect(await v.page.locator(".notice").count()).toBe(0)
  const code = await v.page.evaluate(async () => (await fetch("/console/api/hub/api/v1/namespaces")).status)
  expect(code).toBe(401)
  await settled(v.page)
})
