import { afterEach, beforeEach, expect, test, vi } from "vitest"
import { can, listable } from "../src/hub/access"

const said = (body: object, status = 201) => new Response(JSON.stringify(body), { status })
const fetching = vi.fn<() => Promise<Response>>()
beforeEach(() => vi.stubGlobal("fetch", fetching))
afterEach(() => vi.unstubAllGlobals())

test("a review that fails is no answer, and is asked again; one that is answered is remembered", async () => {
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

test("where something may be listed is not known either, if nobody can say", async () => {
  fetching.mockRejectedValueOnce(new TypeError("Failed to fetch"))
  await expect(listable({ group: "", resource: "pods", namespaced: true }, ["shop"])).rejects.toThrow("Failed to fetch")
})
