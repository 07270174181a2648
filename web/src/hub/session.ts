import { store } from "../part/store"
import { onUnauthorized, readStatus, StatusError } from "./client"
import { forgetDrafts } from "./draft"
import { live } from "./live"

export type Session = { user: string; groups: string[]; expires: string; version: string }
/** asking: not known yet. out: nobody is signed in; reason says why if somebody was. */
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

/** Opens the session of a link, which is in the fragment and leaves the address bar at once, or goes on with the one there is, if any. */
export async function start(): Promise<boolean> {
  onUnauthorized(() => void check())
  // A hub that stops ends the connection, and not the session.
  live.ended = () => void check()
  live.refused = () => void check()
  // A link that is pasted into a tab of the console changes the fragment, and nothing else.
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
      // Used or too old: a session that is there still counts.
    }
  }
  await resume(link ? "link" : undefined)
}

/** The session is that of all tabs: what one of them does to it, the others look at. */
const tabs = new BroadcastChannel("orrery.session")

function changed(session: Session): void {
  tabs.postMessage("")
  enter(session)
}

let user = ""

/** Goes on with a session. What the page shows and remembers is its user's: for another one it begins anew. */
function enter(session: Session): void {
  if (user && session.user !== user) {
    forgetDrafts()
    signed.set({ state: "asking" })
    location.reload()
    return
  }
  // What was refused while the session went on is not tried again at once.
  const back = signed.now().state === "out"
  user = session.user
  signed.set({ state: "in", session })
  if (back) live.retry()
}

/** The session as the hub wrote it into the page, if the browser sent the cookie when it asked for that. */
function told(): Session | undefined {
  const text = document.querySelector<HTMLMetaElement>("meta[name=session]")?.content
  return text?.startsWith("{") ? JSON.parse(text) : undefined
}

/** Goes on with the session that there is. While the hub does not answer, it is asked again. */
async function resume(reason?: "link"): Promise<void> {
  try {
    // The page was written of a moment before it came: it tells who begins, and not who goes on.
    enter((user ? undefined : told()) ?? (await ask("GET")))
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
