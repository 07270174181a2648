import type { Route } from "playwright-core"
import { test } from "vitest"
import { expect, settled, type Visit, visit, withBrowser } from "./world"

// The requests for which the first rows of a page must not wait.

withBrowser()

const row = (v: Visit) => v.page.locator(".grid-row:not(.absent)").first()

/** Holds back the answers to discovery requests until the returned function is called. */
async function holdKinds(v: Visit): Promise<() => Promise<void>> {
  const held: Route[] = []
  let open = false
  await v.page.route(/\/resources\/fleet\/proxy\/apis?$/, (route) => (open ? route.continue() : void held.push(route)))
  return async () => {
    open = true
    await Promise.all(held.map((route) => route.continue()))
  }
}

test("the first rows of a table wait for neither the session nor the kinds; the socket's address requests them", async () => {
  const v = await visit()
  await v.go("/table?kind=Pod")
  await row(v).waitFor()
  const asked: string[] = []
  v.page.on("request", (r) => asked.push(new URL(r.url()).pathname))
  v.page.on("websocket", (socket) => {
    asked.push(new URL(socket.url()).searchParams.get("open") ?? "")
    socket.on("framesent", (frame) => asked.push(String(frame.payload)))
  })
  const release = await holdKinds(v)
  await v.go("/table?kind=Pod&q=cluster:oak")
  await row(v).waitFor()
  expect(asked).not.toContain("/console/api/session")
  expect(asked.filter((what) => what.includes('"open"'))).toEqual([expect.stringContaining("/api/v1/pods")])
  await release()
  await settled(v.page)
  await v.page.locator(".count, output").first().waitFor()
  expect(asked.filter((what) => what.includes('"open"'))).toHaveLength(1)
  expect(v.seen.errors).toEqual([])
})

test("a remembered kind that does not exist shows no refusal, and is ignored once the kinds are loaded", async () => {
  const v = await visit()
  await v.go("/table?kind=Pod")
  await row(v).waitFor()
  await v.page.evaluate(() => {
    const kept = Object.keys(sessionStorage).find((key) => key.startsWith("orrery.kinds "))!
    const kinds = JSON.parse(sessionStorage.getItem(kept)!)
    for (const kind of kinds) if (kind.kind === "Pod") kind.version = "v9"
    sessionStorage.setItem(kept, JSON.stringify(kinds))
  })
  const refused = new Promise<void>((yes) =>
    v.page.on("websocket", (socket) => socket.on("framereceived", (frame) => String(frame.payload).includes('"type":"error"') && yes())),
  )
  const release = await holdKinds(v)
  await v.go("/table?kind=Pod")
  await refused
  await v.page.locator(".grid-loading").waitFor()
  expect(await v.page.locator(".grid-nothing, [role=alert]").count()).toBe(0)
  await release()
  await row(v).waitFor()
})
