import { afterEach, expect, test, vi } from "vitest"

// The page's session, with a simulated hub and a socket that is never opened.

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

test("a socket that is refused during the session is not opened again at once, but after the next sign-in it is", async () => {
  expect(await start()).toBe(true)
  live.doubted()
  await asked()
  expect(retry).not.toHaveBeenCalled()
  answer = () => Response.json({ kind: "Status", code: 401, message: "over" }, { status: 401 })
  live.doubted()
  await asked()
  answer = () => Response.json(session("ann"))
  await signIn("token")
  expect(retry).toHaveBeenCalledOnce()
  expect(location.reload).not.toHaveBeenCalled()
})

test("the page is reloaded for another user", async () => {
  answer = () => Response.json(session("bob"))
  live.doubted()
  await asked()
  expect(location.reload).toHaveBeenCalledOnce()
})
