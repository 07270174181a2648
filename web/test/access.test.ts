import { afterEach, beforeEach, expect, test, vi } from "vitest"
import { can, listable } from "../src/hub/access"

const said = (body: object, status = 201) => new Response(JSON.stringify(body), { status })
const fetching = vi.fn<() => Promise<Response>>()
beforeEach(() => vi.stubGlobal("fetch", fetching))
afterEach(() => vi.unstubAllGlobals())

test("a failed access review is not cached and is asked again; an answered one is cached", async () => {
  const act = { verb: "patch", group: "cluster.orrery.dev", resource: "clusters", name: "oak" }
  fetching.mockResolvedValueOnce(said({ kind: "Status", code: 503, reason: "ServiceUnavailable", message: "etcd is not there" }, 503))
  await expect(can(act)).rejects.toThrow("etcd is not there")
  await expect(fetching.mockRejectedValueOnce(new TypeError("Failed to fetch")) && can(act)).rejects.toThrow("Failed to fetch")
  fetching.mockResolvedValueOnce(said({ status: { allowed: true } }))
  expect(await can(act)).toBe(true)
  expect(await can(act)).toBe(true)
  expect(fetching).toHaveBeenCalledTimes(3)
  fetching.mockResolvedValueOnce(said({ status: { allowed: false } }))
  expect(await can({ ...act, verb: "delete" })).toBe(false)
})

test("listable rejects if the access review fails", async () => {
  fetching.mockRejectedValueOnce(new TypeError("Failed to fetch"))
  await expect(listable({ group: "", resource: "pods", namespaced: true }, ["shop"])).rejects.toThrow("Failed to fetch")
})
