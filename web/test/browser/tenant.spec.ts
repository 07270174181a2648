import { beforeAll, describe, test } from "vitest"
import { expect, pages, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

const of = "Deployment.apps/shop/web"

describe("a user with rights in one namespace", () => {
  let v: Visit
  beforeAll(async () => {
    v = await visit("alice")
  })

  const hers = {
    ...pages,
    object: `/object?cluster=oak&of=${of}`,
    template: `/object?of=${of}`,
    matrix: `/placements?of=${of}`,
    why: `/why?of=${of}`,
    policy: "/policies?kind=PropagationPolicy&namespace=shop&name=web",
    override: "/policies?kind=OverridePolicy&namespace=shop",
  }
  test.each(Object.entries(hers))("uses the page %s: no request is refused, and no data of others is sent", async (name, path) => {
    v.seen.bodies.length = 0
    await v.go(path)
    await settled(v.page)
    await v.page.waitForLoadState("networkidle")
    expect(v.seen).toMatchObject({ failures: [], errors: [] })
    if (name === "template") await expect.poll(() => v.seen.bodies.join("\n")).toContain('"web"')
    const all = v.seen.bodies.join("\n")
    for (const word of ["hidden-vault", "classified"]) expect(all.split("\n").filter((line) => line.includes(word))).toEqual([])
  })
})

test("her objects work: she sees them in their clusters, and her policy", async () => {
  const v = await visit("alice")
  await v.go("/")
  await v.page.locator(".tile", { hasText: "oak" }).waitFor()
  await v.go(`/placements?of=${of}`)
  await v.page.locator(".matrix tbody tr", { hasText: "pine" }).waitFor()
  await v.go("/policies")
  await v.page.getByRole("link", { name: "mirror-in-pine" }).waitFor()
  await v.go("/policies?kind=PropagationPolicy&namespace=shop&name=web")
  await v.page.locator(".preview li[data-placed=true]", { hasText: "oak" }).waitFor()
  expect(v.seen.failures).toEqual([])
})
