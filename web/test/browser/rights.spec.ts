import { test } from "vitest"
import { expect, visit, withBrowser } from "./world"

withBrowser()

test("a permission that cannot be checked is unknown, not refused; a second check offers the action", async () => {
  const v = await visit()
  const reviews = "**/selfsubjectaccessreviews"
  const status = { kind: "Status", apiVersion: "v1", status: "Failure", code: 503, reason: "ServiceUnavailable", message: "the store does not answer" }
  // The route stays until the end of the test: a request that begins while a route is removed may
  // never be answered.
  let fails = true
  await v.page.route(reviews, (route) => (fails ? route.fulfill({ status: 503, json: status }) : route.continue()).catch(() => {}))
  for (const [path, act, refusal] of [
    ["/clusters/oak", "Unjoin", "You may not"],
    ["/object?cluster=oak&of=Deployment.apps/demo/hello&tab=yaml", "Edit", "You may look at this"],
    ["/policies?kind=PropagationPolicy&namespace=demo&name=hello", "Review and save", "You may read this policy"],
  ] as const) {
    fails = true
    await v.go(path)
    const unknown = v.page.getByText("Your permissions could not be checked")
    await unknown.waitFor()
    await v.page.getByText("the store does not answer").waitFor()
    expect(await v.page.getByText(refusal).count()).toBe(0)
    const button = v.page.getByRole("button", { name: act, exact: true })
    expect(await button.count()).toBe(0)
    fails = false
    await v.page.getByRole("button", { name: "Try again" }).click()
    await button.waitFor()
    await unknown.waitFor({ state: "detached" })
  }
})
