import { type ExecFileException, execFile } from "node:child_process"
import { readFileSync } from "node:fs"
import { request } from "node:https"
import { text } from "node:stream/consumers"
import AxeBuilder from "axe-core"
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core"
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject } from "vitest"
import { parse } from "yaml"

// The environment of the specs: a running demo with its directory in CONSOLE_DATA, and a browser.

const data = process.env.CONSOLE_DATA ?? ""
const orrery = process.env.ORRERY ?? ""
export const kubeconfig = `${data}/kubeconfig`

/** Errors of a busy server, and conflicts with a concurrent write. */
const momentary =
  /connection refused|connection reset|i\/o timeout|TLS handshake timeout|unexpected EOF|etcdserver: |unable to handle the request|ServiceUnavailable|too many requests|the object has been modified/

/** The kubectl commands that may be repeated. */
const repeatable = ["get", "apply", "patch", "label", "annotate", "wait"]

/**
 * Waits a second. It returns false after 60 attempts, in which a stalled server should answer
 * again.
 */
const pause = (again: number) => again < 60 && new Promise<true>((later) => setTimeout(() => later(true), 1000))

/**
 * Runs orrery and returns its output. kubectl commands in repeatable are retried after transient
 * errors.
 */
export async function run(args: string[], input = ""): Promise<string> {
  for (let again = 0; ; again++) {
    try {
      return await once(args, input)
    } catch (e) {
      const may = args[0] === "kubectl" && args.some((arg) => repeatable.includes(arg)) && momentary.test(String(e))
      if (!may || !(await pause(again))) throw e
    }
  }
}

function once(args: string[], input: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = execFile(orrery, args, { maxBuffer: 64 << 20 }, (error: ExecFileException | null, out, err) =>
      error ? reject(new Error(`orrery ${args.join(" ")}: ${err || error.message}`)) : resolve(out),
    )
    child.stdin?.end(input)
  })
}

export const kubectl = (...args: string[]) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", "hub", ...args])
export const apply = (manifest: string, ...args: string[]) =>
  run(["kubectl", "--kubeconfig", kubeconfig, "--context", "hub", "apply", "-f", "-", ...args], manifest)

/** The hub's address, and the credentials of its administrator. */
function hub() {
  const { clusters, contexts, users } = parse(readFileSync(kubeconfig, "utf8"))
  const { context } = contexts.find((c: { name: string }) => c.name === "hub")
  const { cluster } = clusters.find((c: { name: string }) => c.name === context.cluster)
  const { user } = users.find((u: { name: string }) => u.name === context.user)
  const decoded = (text: string) => Buffer.from(text, "base64")
  return {
    server: cluster.server as string,
    ca: decoded(cluster["certificate-authority-data"]),
    cert: decoded(user["client-certificate-data"]),
    key: decoded(user["client-key-data"]),
  }
}

/**
 * Creates a link to the console, for the demo's administrator or for another user. It tries again
 * while the hub's API server does not forward requests: a second link harms nothing.
 */
export async function link(as?: string): Promise<string> {
  for (let again = 0; ; again++) {
    try {
      return await newLink(as)
    } catch (e) {
      if (!/: (429|500|503|504) |ECONN(REFUSED|RESET)|socket hang up/.test(String(e)) || !(await pause(again))) throw e
    }
  }
}

function newLink(as?: string): Promise<string> {
  const { server, ...credentials } = hub()
  const headers = { "Content-Type": "application/json", ...(as && { "Impersonate-User": as, "Impersonate-Group": "system:authenticated" }) }
  const url = `${server}/apis/fleet.orrery.dev/v1alpha1/consolelinks`
  return new Promise((resolve, reject) => {
    const asked = request(url, { method: "POST", headers, ...credentials, agent: false }, async (answer) => {
      try {
        const body = await text(answer)
        if (answer.statusCode !== 201) throw new Error(`a link to the console: ${answer.statusCode} ${body}`)
        resolve(JSON.parse(body).status.url)
      } catch (e) {
        reject(e)
      }
    })
    asked.on("error", reject)
    asked.end(JSON.stringify({ apiVersion: "fleet.orrery.dev/v1alpha1", kind: "ConsoleLink" }))
  })
}

/** The process ID of a process of the demo, such as oak-apiserver. */
export function pid(name: string): number {
  return Number(readFileSync(`${data}/processes/${name}.pid`, "utf8").split("\n")[0])
}

export const sizes = {
  phone: { width: 390, height: 844 },
  tablet: { width: 1024, height: 768 },
  desk: { width: 1600, height: 1000 },
}

export interface Seen {
  /** Errors that the page logged, including those of its Content-Security-Policy. */
  errors: string[]
  /** Answers of the hub with an error status. */
  failures: string[]
  /** Every answer and frame that the page received. */
  bodies: string[]
}

declare module "vitest" {
  interface ProvidedContext {
    /** The address of the browser that all specs share. Without one, each spec starts its own. */
    browser: string
  }
}

const program = {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
}

/**
 * Starts the browser that all specs share. Signals do not close it, because the teardown of the
 * run does.
 */
export const startShared = () => chromium.launchServer({ ...program, handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false })

let browser: Browser | undefined

/**
 * Closes a context. Routes are removed first, because late requests would make their handlers
 * fail.
 */
async function end(context: BrowserContext): Promise<void> {
  await Promise.all(context.pages().map((page) => page.unrouteAll({ behavior: "ignoreErrors" })))
  await context.close()
}

/**
 * Provides a browser to the tests of a file: the shared one, or a new one if arguments are given.
 * A context that was opened during tests is closed when no test is running, others after the last
 * test of the file.
 */
export function withBrowser(...args: string[]): void {
  let before: BrowserContext[] = []
  let running = 0 // tests that run at the same time
  beforeAll(async () => {
    const shared = args.length === 0 ? inject("browser") : undefined
    browser = shared ? await chromium.connect(shared) : await chromium.launch({ ...program, args: [...program.args, ...args] })
  })
  beforeEach(() => {
    if (running++ === 0) before = browser!.contexts()
  })
  afterEach(async () => {
    if (--running > 0) return
    await Promise.all(browser!.contexts().map((context) => before.includes(context) || end(context)))
  })
  afterAll(async () => {
    await Promise.all(browser!.contexts().map(end))
    await browser!.close()
  })
}

export interface Visit {
  context: BrowserContext
  page: Page
  seen: Seen
  /** Opens a page of the console, such as /policies. */
  go: (path: string) => Promise<void>
}

/** A new browser context without a session. */
export async function visitSignedOut(viewport = sizes.desk): Promise<Visit> {
  const context = await browser!.newContext({ ignoreHTTPSErrors: true, viewport, reducedMotion: "reduce", locale: "en-GB" })
  const page = await context.newPage()
  page.setDefaultTimeout(180_000)
  const seen: Seen = { errors: [], failures: [], bodies: [] }
  page.on("pageerror", (e) => seen.errors.push(String(e)))
  // The browser also logs answers with an error status; failures has them already.
  page.on("console", (m) => m.type() === "error" && !m.text().startsWith("Failed to load resource") && seen.errors.push(m.text()))
  page.on("response", async (answer) => {
    const { pathname, search } = new URL(answer.url())
    if (!pathname.startsWith("/console/api/")) return
    // The history of a new demo may begin after the requested time. The page then takes the start
    // from the answer, so this is not a failure.
    const beforeHistory = answer.status() === 410 && search.includes("changedSince")
    // Orrery answers in JSON. The hub's API server says in plain text that it forwards nothing now.
    const notForwarded = answer.status() === 503 && (answer.headers()["content-type"] ?? "").startsWith("text/plain")
    if (answer.status() >= 400 && !beforeHistory && !notForwarded) seen.failures.push(`${answer.status()} ${answer.request().method()} ${pathname}${search}`)
    seen.bodies.push(`${pathname}${search}\n${await answer.text().catch(() => "")}`)
  })
  page.on("websocket", (socket) => socket.on("framereceived", (frame) => seen.bodies.push(String(frame.payload))))
  const go = async (path: string) => {
    await page.goto(`${await origin()}/console${path}`)
    await page.locator("#content, main").first().waitFor()
  }
  return { context, page, seen, go }
}

let known = ""
export async function origin(): Promise<string> {
  known ||= new URL(await link()).origin
  return known
}

/** Opens the console in a page with a link, and returns the link. */
export async function open(page: Page, as?: string): Promise<string> {
  const content = page.locator("#content")
  let url = ""
  // On a busy machine a link may expire before it is opened.
  for (let again = 0; again < 3; again++) {
    url = await link(as)
    await page.goto(url)
    await content.or(page.locator(".sign-in")).first().waitFor()
    if (await content.count()) break
  }
  await content.waitFor()
  return url
}

/** A new browser context with a session, opened by a link. */
export async function visit(as?: string, viewport = sizes.desk): Promise<Visit> {
  const v = await visitSignedOut(viewport)
  await open(v.page, as)
  v.seen.failures.length = 0
  return v
}

/** Waits until the page's code is loaded and its first requests are answered. */
export async function settled(page: Page): Promise<void> {
  await page.locator("h1").first().waitFor()
  await page.locator(".skeleton").first().waitFor({ state: "detached" })
}

/**
 * Waits until the actions on the page's object are available: the page checks the right to write
 * after it shows the object.
 */
export const writable = (page: Page) => page.getByRole("button", { name: "Edit", exact: true }).waitFor()

/** The accessibility problems that axe finds on a page. */
export async function axe(page: Page): Promise<string[]> {
  await page.evaluate(AxeBuilder.source)
  const found = await page.evaluate(() =>
    // biome-ignore lint/suspicious/noExplicitAny: axe is injected as a script.
    (window as any).axe.run(document, { resultTypes: ["violations"] }),
  )
  return (found.violations as { id: string; nodes: { html: string; failureSummary?: string }[] }[]).map(
    (v) => `${v.id}: ${v.nodes.map((n) => `${n.html.slice(0, 160)} ${n.failureSummary?.split("\n").at(-1)?.trim()}`).join("\n  ")}`,
  )
}

/** Sets the theme of the current page, and of all later pages of the visit. */
export async function wear(page: Page, theme: "light" | "dark"): Promise<void> {
  await page.evaluate((t) => {
    localStorage.setItem("orrery.theme", t)
    document.documentElement.dataset.theme = t
  }, theme)
}

export const demo = { namespace: "demo", of: "Deployment.apps/demo/hello" }

/** The pages of the console by name. */
export const pages: Record<string, string> = {
  fleet: "/",
  cluster: "/clusters/oak",
  nodes: "/clusters/oak?tab=nodes",
  placed: "/clusters/oak?tab=placed",
  mirror: "/clusters/oak?tab=mirror",
  table: "/table",
  object: `/object?cluster=oak&of=${demo.of}`,
  template: `/object?of=${demo.of}`,
  placements: "/placements",
  matrix: `/placements?of=${demo.of}`,
  why: `/why?of=${demo.of}`,
  policies: "/policies",
  policy: "/policies?kind=PropagationPolicy&namespace=demo&name=hello",
  override: "/policies?kind=OverridePolicy&namespace=demo",
  changes: "/changes",
  join: "/join",
  operations: "/operations",
}

export { expect }

/** Replaces a text in the editor. */
export async function rewrite(v: Visit, from: string, to: string): Promise<void> {
  const editor = v.page.getByRole("textbox", { name: /YAML of|New object/ })
  await editor.waitFor()
  await editor.click()
  await v.page.keyboard.press("Control+Home")
  await v.page.keyboard.press("Control+f")
  await v.page.keyboard.type(from)
  await v.page.keyboard.press("Enter")
  await v.page.keyboard.press("Escape")
  await v.page.keyboard.insertText(to)
}
