import { can, reaching } from "../hub/access"
import { request, StatusError } from "../hub/client"
import { t } from "../text/text"
import { type Ring, Splitter } from "./merge"

/** A container of a pod. The UID identifies the pod among pods of the same name. */
export type Source = { cluster: string; path: string; name: string; uid?: string; container: string }
/** The state of a stream; message is the error of a failed one. */
export type Health = { state: "opening" | "following" | "ended" | "failed"; message: string }

/** Pure: the wait after consecutive failures of a stream, from 5 s to 2 min. */
export const pauseAfter = (failures: number): number => Math.min(5000 * 2 ** Math.max(0, failures - 1), 120_000)

/**
 * follow reads the log of one container into the ring and reconnects after breaks. It ends with
 * the signal or, for the log of a previous container, at the end of the log.
 */
export async function follow(source: Source, stream: number, ring: Ring, tail: number, previous: boolean, tell: (health: Health) => void, signal: AbortSignal) {
  // If the permission cannot be checked, the cluster is asked.
  if (source.cluster && !(await can(reaching(source.cluster, "get")).catch(() => true))) {
    tell({ state: "failed", message: t("object.noReach", { cluster: source.cluster }) })
    return
  }
  const splitter = new Splitter()
  let failures = 0
  while (!signal.aborted) {
    try {
      const since = splitter.since
      const query = { container: source.container, timestamps: true, previous: previous || undefined, follow: previous ? undefined : true }
      const answer = await request(source.path, {
        query: { ...query, ...(since ? { sinceTime: since } : { tailLines: tail }) },
        accept: "*/*",
        signal,
        endless: true,
      })
      if (since) splitter.resume()
      failures = 0
      tell({ state: "following", message: "" })
      const reader = answer.body!.getReader()
      for (;;) {
        const { done, value } = await reader.read()
        if (done) break
        ring.add(stream, splitter.add(value))
      }
      ring.add(stream, splitter.end())
      tell({ state: "ended", message: "" })
      if (previous) return
    } catch (e) {
      if (signal.aborted) return
      failures++
      tell({ state: "failed", message: messageOf(e) })
      if (previous || (e instanceof StatusError && (e.refused || e.code === 404))) return
    }
    await pause(pauseAfter(failures), signal)
  }
}

/** Pure: the message of a failed stream. A node without an address is described in plain words. */
function messageOf(e: unknown): string {
  const message = e instanceof Error ? e.message : String(e)
  return message.includes("no preferred addresses found") ? t("object.noNodeAddress") : message
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    const timer = setTimeout(done, ms)
    signal.addEventListener("abort", () => {
      clearTimeout(timer)
      done()
    })
  })
