import { test } from "vitest"
import { apply, expect, kubectl, settled, sizes, visit, withBrowser } from "./world"

withBrowser()

// The browser answers in place of the hub, as a store or a hub that fails.
const away = { status: 503, contentType: "application/json", body: '{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"not now"}' }

// Answers are refreshed every 10 or 15 seconds.
const next = { timeout: 180_000 }

test("events of copies that cannot be read are not an empty list", async () => {
  const v = await visit()
  await v.page.route("**/fleet/proxy/api/v1/namespaces/demo/events?*", (route) => route.fulfill(away))
  await v.go("/object?of=ConfigMap/demo/hello&tab=events")
  await apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: hello, namespace: demo}}")
  await v.page.getByText("not now").waitFor(next)
  expect(await v.page.getByText("No events").count()).toBe(0)
  await kubectl("delete", "configmap", "hello", "-n", "demo")
})

test("the search in the hub's objects finds them beyond the first page", async () => {
  const items = Array.from({ length: 520 }, (_, i) => ({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: `plenty-${String(i).padStart(3, "0")}` } }))
  await kubectl("create", "namespace", "plenty").catch(() => {})
  await apply(JSON.stringify({ apiVersion: "v1", kind: "List", items }), "-n", "plenty", "--server-side")
  const v = await visit()
  await v.go("/table?hub=1&kind=ConfigMap&q=plenty-519")
  await v.page.getByRole("link", { name: "plenty-519" }).waitFor()
  await kubectl("delete", "namespace", "plenty", "--wait=false")
}, 600_000)

test("on a phone a menu sorts the rows, also by keyboard", async () => {
  const v = await visit(undefined, sizes.phone)
  await v.go("/table?kind=Node")
  await settled(v.page)
  await v.page.getByRole("button", { name: "Columns" }).focus()
  await v.page.keyboard.press("Enter")
  await v.page.getByRole("menuitemradio", { name: "Cluster ↓" }).press("Enter")
  await v.page.waitForURL(/sort=cluster\+desc/)
  await v.page
    .getByText(/^pine-\d$/)
    .first()
    .waitFor()
  expect(await v.page.locator(".grid-row .narrow-line a").first().textContent()).toMatch(/^pine/)
})

test("invalid values in an address are ignored", async () => {
  const v = await visit()
  await v.go("/changes?since=evil")
  await v.page.getByText(/^[1-9]\d* changes$/).waitFor()
  await v.go("/policies?kind=constructor")
  await v.page.getByRole("heading", { level: 1, name: "Policies" }).waitFor()
})
