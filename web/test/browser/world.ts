import { type ExecFileException, execFile } from "node:child_process"
import { readFileSync } from "node:fs"
import AxeBuilder from "axe-core"
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core"
import { afterAll, beforeAll, expect } from "vitest"

// What the specs stand on: a demo that runs, whose directory is in CONSOLE_DATA, and a browser.

const data = process.env.CONSOLE_DATA ?? ""
const orrery = process.env.ORRERY ?? ""
export const kubeconfig = `${data}/kubeconfig`

/** Runs orrery and returns what it says. */
export function run(args: string[], input = ""): Promise<string> {
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

const links = "/apis/fleet.orrery.dev/v1alpha1/consolelinks"

/** A link that opens the console, as the demo's administrator or as somebody else. */
export async function link(as?: string): Promise<string> {
  const body = JSON.stringify({ apiVersion: "fleet.orrery.dev/v1alpha1", kind: "ConsoleLink" })
  const args = ["kubectl", "--kubeconfig", kubeconfig, "--context", "hub", "create", "--raw", links, "-f", "-"]
  const made = await run(as ? [...args, "--as", as, "--as-group", "system:authenticated"] : args, body)
  return JSON.parse(made).status.url
}

/** The process of the demo that has a name, such as oak-apiserver. */
export function pid(name: string): number {
  return Number(readFileSync(`${data}/processes/${name}.pid`, "utf8").split("\n")[0])
}

export const sizes = {
  phone: { width: 390, height: 844 },
  tablet: { width: 1024, height: 768 },
  desk: { width: 1600, height: 1000 },
}

export interface Seen {
  /** What the page said went wrong: errors, and what its policy of contents refused. */
  errors: string[]
  /** Answers of the hub that are no success. */
  failures: string[]
  /** Every answer and frame that came. */
  bodies: string[]
}

let browser: Browser | undefined

/** Starts the browser for the specs of a file. */
export function withBrowser(...args: string[]): void {
  beforeAll(async () => {
    browser = await chromium.launch({
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
        ...args,
      ],
    })
  })
  afterAll(() => browser?.close())
}

export interface Visit {
  context: BrowserContext
  page: Page
  seen: Seen
  /** Goes to a page of the console, such as /policies. */
  go: (path: string) => Promise<void>
}

/** A browser of its own, without a session. */
export async function stranger(viewport = sizes.desk): Promise<Visit> {
  const context = await browser!.newContext({ ignoreHTTPSErrors: true, viewport, reducedMotion: "reduce", locale: "en-GB" })
  const page = await context.newPage()
  page.setDefaultTimeout(15_000)
  const seen: Seen = { errors: [], failures: [], bodies: [] }
  page.on("pageerror", (e) => seen.errors.push(String(e)))
  // The browser's own note of an answer that is no success is among the failures already.
  page.on("console", (m) => m.type() === "error" && !m.text().startsWith("Failed to load resource") && seen.errors.push(m.text()))
  page.on("response", async (answer) => {
    const { pathname, search } = new URL(answer.url())
    if (!pathname.startsWith("/console/api/")) return
    // The history of a young demo begins later than the hour that is asked for, which the page takes from the answer.
    const young = answer.status() === 410 && search.includes("changedSince")
    if (answer.status() >= 400 && !young) seen.failures.push(`${answer.status()} ${answer.request().method()} ${pathname}${search}`)
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

/** A browser with a session, by a link. */
export async function visit(as?: string, viewport = sizes.desk): Promise<Visit> {
  const v = await stranger(viewport)
  await v.page.goto(await link(as))
  await v.page.locator("#content").waitFor()
  v.seen.failures.length = 0
  return v
}

/** Waits until the code of the page has come, and it asks for nothing more of what it shows first. */
export async function settled(page: Page): Promise<void> {
  await page.locator("h1").first().waitFor()
  await page.locator(".skeleton").first().waitFor({ state: "detached" })
}

/** What axe finds wrong with a page. */
export async function axe(page: Page): Promise<string[]> {
  await page.evaluate(AxeBuilder.source)
  const found = await page.evaluate(() =>
    // biome-ignore lint/suspicious/noExplicitAny: axe is brought into the page as a script.
    (window as any).axe.run(document, { resultTypes: ["violations"] }),
  )
  return (found.violations as { id: string; nodes: { html: string; failureSummary?: string }[] }[]).map(
    (v) => `${v.id}: ${v.nodes.map((n) => `${n.html.slice(0, 160)} ${n.failureSummary?.split("\n").at(-1)?.trim()}`).join("\n  ")}`,
  )
}

/** A theme, for all pages of a visit from then on. */
export async function wear(page: Page, theme: "light" | "dark"): Promise<void> {
  await page.evaluate((t) => localStorage.setItem("orrery.theme", t), theme)
}

export const demo = { namespace: "demo", of: "Deployment.apps/demo/hello" }

/** The pages of the console, by a name for each. */
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

/** Writes a text in place of another in the editor. */
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
