import { store } from "../part/store"
import { onUnauthorized, readStatus, StatusError } from "./client"
import { forgetDrafts } from "./draft"
import { live } from "./live"

export type Session = { user: string; groups: string[]; expires: string; version: string }
/**
 * asking: not known yet. out: not signed in; reason is set after a session that ended, an invalid
 * link, or a hub that does not answer.
 */
export type Signed = { state: "asking" } | { state: "in"; session: Session } | { state: "out"; reason?: "ended" | "link" | "unreachable" }

const path = "/console/api/session"
const againMs = 3000
const answerMs = 20_000
const signed = store<Signed>({ state: "asking" })
export const useSession = signed.use

async function ask(method: string, body?: object): Promise<Session> {
  const headers: Record<string, string> = body ? { "Content-Type": "application/json" } : {}
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(answerMs) })
  if (!answer.ok) throw new StatusError(await readStatus(answer))
  return answer.status === 204 ? (undefined as never) : answer.json()
}

/**
 * Opens the session of a link, which is in the fragment and is removed from the address bar at
 * once. Without a link, or if it is invalid, continues an existing session.
 */
export async function start(): Promise<boolean> {
  onUnauthorized(() => void check())
  live.doubted = () => void check()
  // A link that is pasted into a tab of the console changes only the fragment.
  window.addEventListener("hashchange", () => location.hash.startsWith("#link=") && void begin())
  tabs.onmessage = () => void check()
  await begin()
  return signed.now().state === "in"
}

async function begin(): Promise<void> {
  const link = new URLSearchParams(location.hash.slice(1)).get("link")
  if (link) {
    history.replaceState(null, "", location.pathname + location.search)
    try {
      return changed(await ask("POST", { link }))
    } catch {
      // The link was used or is too old; an existing session still counts.
    }
  }
  await resume(link ? "link" : undefined)
}

/** All tabs share the session: a tab that changes it notifies the others. */
const tabs = new BroadcastChannel("orrery.session")

function changed(session: Session): void {
  tabs.postMessage("")
  enter(session)
}

let user = ""

/**
 * Continues with a session. Data and drafts of the page belong to its user, so the page is
 * reloaded for another one.
 */
function enter(session: Session): void {
  if (user && session.user !== user) {
    forgetDrafts()
    signed.set({ state: "asking" })
    location.reload()
    return
  }
  // Only a new sign-in retries the live connection at once, not a connection that was refused
  // during the session.
  const back = signed.now().state === "out"
  user = session.user
  signed.set({ state: "in", session })
  if (back) live.retry()
}

/**
 * The session that the hub wrote into the page, if the browser sent the cookie with the request
 * for it.
 */
function pageSession(): Session | undefined {
  const text = document.querySelector<HTMLMetaElement>("meta[name=session]")?.content
  return text?.startsWith("{") ? JSON.parse(text) : undefined
}

/** Continues with the existing session. While the hub does not answer, it is asked again. */
async function resume(reason?: "link"): Promise<void> {
  try {
    // The session in the page is from the moment the page was loaded. It is good for the first
    // user, but not for a later check.
    enter((user ? undefined : pageSession()) ?? (await ask("GET")))
  } catch (e) {
    const away = !(e instanceof StatusError && e.code === 401)
    signed.set({ state: "out", reason: away ? "unreachable" : reason })
    if (away) window.setTimeout(() => signed.now().state === "out" && void resume(reason), againMs)
  }
}

export async function signIn(token: string): Promise<void> {
  changed(await ask("POST", { token }))
}

export async function signOut(): Promise<void> {
  forgetDrafts()
  await ask("DELETE").catch(() => {})
  location.assign("/console/")
}

async function check(): Promise<void> {
  try {
    enter(await ask("GET"))
  } catch (e) {
    if (e instanceof StatusError && e.code === 401 && signed.now().state === "in") signed.set({ state: "out", reason: "ended" })
  }
}
