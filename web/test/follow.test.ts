import { afterEach, beforeEach, expect, test, vi } from "vitest"
import { follow, pauseAfter } from "../src/logs/follow"
import { Ring } from "../src/logs/merge"

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

const source = { cluster: "", path: "/api/v1/namespaces/shop/pods/web/log", name: "web/main", container: "main" }
const answers = (...next: (() => Response)[]) => {
  const fetched = vi.fn(async () => (next.length > 1 ? next.shift()! : next[0]!)())
  vi.stubGlobal("fetch", fetched)
  return fetched
}
const failed = () => new Response("no preferred addresses found", { status: 500 })

test("after errors, a log is requested at growing intervals", async () => {
  const fetched = answers(failed)
  const end = new AbortController()
  const messages: string[] = []
  const done = follow(source, 0, new Ring(10), 10, false, (h) => messages.push(h.message), end.signal)
  await vi.advanceTimersByTimeAsync(120_000)
  expect(fetched).toHaveBeenCalledTimes(5)
  expect(new Set(messages)).toEqual(new Set(["Logs are unavailable: the node of this pod has no address. Simulated nodes have none."]))
  end.abort()
  await vi.advanceTimersByTimeAsync(0)
  await done
})

test("a stream that worked is opened again at once, after any number of earlier failures", async () => {
  const fetched = answers(failed, failed, failed, () => new Response(""))
  const end = new AbortController()
  const done = follow(source, 0, new Ring(10), 10, false, () => {}, end.signal)
  await vi.advanceTimersByTimeAsync(5000 + 10_000 + 20_000)
  expect(fetched).toHaveBeenCalledTimes(4)
  await vi.advanceTimersByTimeAsync(5000)
  expect(fetched).toHaveBeenCalledTimes(5)
  expect([0, 1, 2, 6, 60].map(pauseAfter)).toEqual([5000, 5000, 10_000, 120_000, 120_000])
  end.abort()
  await vi.advanceTimersByTimeAsync(0)
  await done
})
