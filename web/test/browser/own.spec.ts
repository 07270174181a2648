import { execFile } from "node:child_process"
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { afterAll, beforeAll, test } from "vitest"
import { expect, visit, withBrowser } from "./world"

// The example page of docs/console.md, exactly as printed there, in a console that is built with
// only this change.

// Answers that the test fulfils have no address. Without this flag Chromium lets a page from such
// an address send no requests to this machine.
withBrowser("--disable-features=LocalNetworkAccessChecks")

const web = fileURLToPath(new URL("../..", import.meta.url))
const tool = (name: string, ...args: string[]) => promisify(execFile)(`${web}node_modules/.bin/${name}`, args, { cwd: folder })
let folder = ""

beforeAll(async () => {
  const guide = await readFile(`${web}../docs/console.md`, "utf8")
  const [page = "", line = ""] = ["tsx", "ts"].map((language) => guide.match(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "ms"))?.[1])
  expect(page.split("\n").length).toBeLessThanOrEqual(30)
  folder = await mkdtemp(`${tmpdir()}/own-`)
  for (const name of ["src", "public", "index.html", "package.json", "tsconfig.json", "vite.config.ts"])
    await cp(web + name, `${folder}/${name}`, { recursive: true })
  await symlink(`${web}node_modules`, `${folder}/node_modules`)
  await writeFile(`${folder}/src/own/Website.tsx`, page)
  const pages = `${folder}/src/own/pages.ts`
  await writeFile(pages, (await readFile(pages, "utf8")).replace(/^ *"Website\.apps.*\n/m, line))
  expect(await readFile(pages, "utf8")).toContain(line)
  await tool("tsc", "--noEmit").catch((e) => Promise.reject(new Error(e.stdout)))
  await tool("vite", "build", "--logLevel", "warn")
})

afterAll(() => rm(folder, { recursive: true, force: true }))

test("the documented special page compiles, and is first on the page of its kind", async () => {
  const v = await visit()
  // The hub answers everything except the built files; the Content-Security-Policy stays that of
  // the hub.
  await v.page.route(/\/console\/(?!api\/)/, async (route) => {
    const { pathname } = new URL(route.request().url())
    const asset = pathname.startsWith("/console/assets/")
    const response = asset ? undefined : await route.fetch()
    const nonce = /'nonce-([^']+)'/.exec(response?.headers()["content-security-policy"] ?? "")?.[1] ?? ""
    // A file that is requested when the test is over is gone with the folder. During the test a
    // missing file makes the page show nothing.
    if (asset) await route.fulfill({ path: folder + pathname.replace("/console", "/dist") }).catch(() => route.abort().catch(() => {}))
    else if (nonce) await route.fulfill({ response, body: (await readFile(`${folder}/dist/index.html`, "utf8")).replaceAll("__CSP_NONCE__", nonce) })
    else await route.fulfill({ response })
  })
  await v.go("/object?of=Website.apps.orrery.dev/demo/hello")
  const first = v.page.locator(".tab-content section.section").first()
  await first.getByRole("heading", { name: "Site" }).waitFor()
  await first.getByText(/^\d+\/\d+$/).waitFor()
  expect(await first.locator("dt").allTextContents()).toEqual(["Repository", "Deployment"])
  await first.getByRole("link", { name: "In which clusters" }).click()
  await v.page.locator(".matrix tbody tr", { hasText: "oak" }).waitFor()
  expect(v.seen).toMatchObject({ errors: [], failures: [] })
  // The folder is removed next. A file that the page has requested is sent before.
  await v.page.unrouteAll({ behavior: "wait" })
})
