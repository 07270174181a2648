import { useSyncExternalStore } from "react"
import { onUnauthorized, type Status, StatusError } from "./client"
import { live } from "./live"

export type Session = { user: string; groups: string[]; expires: string; version: string }
/** asking: not known yet. out: nobody is signed in; reason says why if somebody was. */
export type Signed = { state: "asking" } | { state: "in"; session: Session } | { state: "out"; reason?: "ended" | "link" | "unreachable" }

const path = "/console/api/session"
const againMs = 3000
const answerMs = 20_000
let signed: Signed = { state: "asking" }
const listeners = new Set<() => void>()

function set(next: Signed): void {
  signed = next
  for (const f of listeners) f()
}

export function useSession(): Signed {
  return useSyncExternalStore(
    (f) => {
      listeners.add(f)
      return () => listeners.delete(f)
    },
    () => signed,
  )
}

async function ask(method: string, body?: object): Promise<Session> {
  const headers: Record<string, string> = body ? { "Content-Type": "application/json" } : {}
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(answerMs) })
  if (!answer.ok) {
    const text = await answer.text()
    let status: Status = { code: answer.status, reason: answer.statusText, message: text }
    try {
      status = { ...status, ...JSON.parse(text) }
    } catch {
      // The text is the message.
    }
    throw new StatusError(status)
  }
  return answer.status === 204 ? (undefined as never) : answer.json()
}

/** Opens the session of a link, which is in the fragment and leaves the address bar at once, or goes on with the one there is, if any. */
export async function start(): Promise<boolean> {
  onUnauthorized(() => void check())
  // A hub that stops ends the connection, and not the session.
  live.ended = () => void check()
  live.refused = () => void check()
  // A link that is pasted into a tab of the console changes the fragment, and nothing else.
  window.addEventListener("hashchange", () => location.hash.startsWith("#link=") && location.reload())
  const link = new URLSearchParams(location.hash.slice(1)).get("link")
  if (link) {
    history.replaceState(null, "", location.pathname + location.search)
    try {
      set({ state: "in", session: await ask("POST", { link }) })
      return true
    } catch {
      // Used or too old: a session that is there still counts.
    }
  }
  await resume(link ? "link" : undefined)
  return signed.state === "in"
}

/** The session as the hub wrote it into the page, if the browser sent the cookie when it asked for that. */
function told(): Session | undefined {
  const text = document.querySelector<HTMLMetaElement>("meta[name=session]")?.content
  return text?.startsWith("{") ? JSON.parse(text) : undefined
}

/** Goes on with the session that there is. While the hub does not answer, it is asked again. */
async function resume(reason?: "link"): Promise<void> {
  try {
    set({ state: "in", session: told() ?? (await ask("GET")) })
  } catch (e) {
    const away = !(e instanceof StatusError && e.code === 401)
    set({ state: "out", reason: away ? "unreachable" : reason })
    if (away) window.setTimeout(() => signed.state === "out" && void resume(reason), againMs)
  }
}

/** What the page remembers may be somebody else's, so it begins anew. */
export async function signIn(token: string): Promise<void> {
  await ask("POST", { token })
  location.reload()
}

export async function signOut(): Promise<void> {
  await ask("DELETE").catch(() => {})
  location.assign("/console/")
}

function ended(): void {
  if (signed.state === "in") set({ state: "out", reason: "ended" })
}

async function check(): Promise<void> {
  await ask("GET").catch((e) => e instanceof StatusError && e.code === 401 && ended())
}
