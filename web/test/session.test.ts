import { afterEach, expect, test, vi } from "vitest"

// The page's session, with a hub that answers as it is told, and a socket that nobody opens.

const session = (user: string) => ({ user, groups: [], expires: "", version: "" })
let answer: () => Response = () => Response.json(session("ann"))
const location = { hash: "", pathname: "/console/", search: "", reload: vi.fn(), assign: vi.fn() }

vi.stubGlobal("location", location)
vi.stubGlobal("window", { addEventListener: () => {}, setTimeout: () => 0 })
vi.stubGlobal("document", { addEventListener: () => {}, querySelector: () => null })
vi.stubGlobal("fetch", async () => answer())
const { live } = await import("../src/hub/live")
const { signIn, start } = await import("../src/hub/session")
const retry = vi.spyOn(live, "retry").mockImplementation(() => {})

afterEach(() => retry.mockClear())

const asked = () => new Promise((done) => setTimeout(done))

test("a socket that is refused while the session goes on is not opened again at once; one that ended is, when somebody signs in", async () => {
  expect(await start()).toBe(true)
  live.refused()
  await asked()
  expect(retry).not.toHaveBeenCalled()
  answer = () => Response.json({ kind: "Status", code: 401, message: "over" }, { status: 401 })
  live.refused()
  await asked()
  answer = () => Response.json(session("ann"))
  await signIn("token")
  expect(retry).toHaveBeenCalledOnce()
  expect(location.reload).not.toHaveBeenCalled()
})

test("the page begins anew for another user", async () => {
  answer = () => Response.json(session("bob"))
  live.refused()
  await asked()
  expect(location.reload).toHaveBeenCalledOnce()
})
