import { readFile } from "node:fs/promises"
import { expect, test } from "vitest"
import { axe, kubeconfig, run, settled, type Visit, visit, withBrowser } from "../world"

// Logs and shells of a real kubelet. test/lab/agent created the Deployments talk and web. The two
// pods of talk write to their logs and exit on command; the image of web has no shell.

withBrowser()

const inOak = (...args: string[]) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", "oak", "-n", "default", ...args])
const podsOf = async (app: string) => (await inOak("get", "pods", "-l", `app=${app}`, "-o", "jsonpath={.items[*].metadata.name}")).split(" ").sort()
const tell = (pod: string, what: string) => inOak("exec", pod, "--", "sh", "-c", what)
const say = (pod: string, text: string) => tell(pod, `echo "${text}" >/proc/1/fd/1`)
const of = (kind: string, name: string, tab: string) => `/object?cluster=oak&of=${encodeURIComponent(`${kind}/default/${name}`)}&tab=${tab}`

const lines = (v: Visit) => v.page.getByRole("log").locator(".line")
const line = (v: Visit, text: string) => lines(v).filter({ hasText: text })

test("the logs of a workload are merged by time, followed, searched, paused and saved", async () => {
  const v = await visit()
  const [one = "", two = ""] = await podsOf("talk")
  await say(one, "first of all")
  await say(two, "second of all")
  await v.go(of("Deployment.apps", "talk", "logs"))
  await line(v, "second of all").waitFor()
  await say(one, "third, which is new")
  await line(v, "third, which is new").waitFor()
  expect(await axe(v.page)).toEqual([])
  expect(await line(v, "first of all").locator(".line-from").textContent()).toBe(`${one}/talk`)
  expect(await line(v, "second of all").locator(".line-from").textContent()).toBe(`${two}/talk`)
  const said = (await lines(v).locator(".line-text").allTextContents()).filter((text) => /first|second|third/.test(text))
  expect(said).toEqual(["first of all", "second of all", "third, which is new"])

  const search = v.page.getByRole("searchbox", { name: "Search the logs" })
  await search.fill("OF ALL")
  await v.page.getByText("1 of 2").waitFor()
  await search.press("Enter")
  await v.page.getByText("2 of 2").waitFor()
  expect(await v.page.locator(".line.current").textContent()).toContain("second of all")
  await search.fill("")

  await v.page.getByRole("button", { name: "Pause" }).click()
  await say(two, "while it is paused")
  await v.page.getByRole("button", { name: "Resume (1 new)" }).waitFor()
  expect(await line(v, "while it is paused").count()).toBe(0)
  await v.page.getByRole("button", { name: "Resume" }).click()
  await line(v, "while it is paused").waitFor()

  const [file] = await Promise.all([v.page.waitForEvent("download"), v.page.getByRole("button", { name: "Download" }).click()])
  const kept = (await readFile(await file.path(), "utf8")).split("\n").filter((text) => /of all|third|paused/.test(text))
  expect(kept.map((text) => text.slice(text.indexOf(" ") + 1))).toEqual([
    `${one}/talk first of all`,
    `${two}/talk second of all`,
    `${one}/talk third, which is new`,
    `${two}/talk while it is paused`,
  ])
  expect([...kept].sort()).toEqual(kept)
  expect(v.seen.failures).toEqual([])
})

test("the log continues with the next container, and that of the previous one can be read", async () => {
  const v = await visit()
  const [pod = ""] = await podsOf("talk")
  await v.go(of("Pod", pod, "logs"))
  await line(v, "a life begins").waitFor()
  await tell(pod, ": >/data/end")
  await expect.poll(() => lines(v).locator(".line-text").allTextContents(), { timeout: 180_000 }).toEqual(expect.arrayContaining(["it ends"]))
  await expect.poll(() => line(v, "a life begins").count(), { timeout: 180_000 }).toBe(2)
  await v.page.getByRole("button", { name: "Previous container" }).click()
  await line(v, "it ends").waitFor()
  expect(await line(v, "a life begins").count()).toBe(1)
})

const rowsOf = (v: Visit) => v.page.locator(".xterm-accessibility-tree [role=listitem]")
const shown = async (v: Visit) => (await rowsOf(v).allTextContents()).join("\n")

/** Types a command and waits until the screen matches. */
async function type(v: Visit, command: string, shows: RegExp): Promise<RegExpMatchArray> {
  await v.page.keyboard.type(`${command}\n`)
  let found: RegExpMatchArray | null = null
  const look = async () => {
    found = (await shown(v)).match(shows)
    return found !== null
  }
  await expect.poll(look).toBe(true)
  return found!
}

test("a shell takes input, has the size of its window, and shows how it ended", async () => {
  const v = await visit()
  const [, pod = ""] = await podsOf("talk")
  await v.go(of("Pod", pod, "shell"))
  await v.page.getByRole("button", { name: "Open" }).click()
  await expect.poll(() => shown(v)).toMatch(/[#$]/)
  await type(v, "echo $((6*7)) in $HOSTNAME", new RegExp(`^42 in ${pod}`, "m"))
  expect(await axe(v.page)).toEqual([])
  const [, rows, columns] = await type(v, "stty size", /^(\d+) (\d+)\s*$/m)
  expect(Number(rows)).toBe(await rowsOf(v).count())
  await v.page.setViewportSize({ width: 900, height: 600 })
  await expect.poll(() => rowsOf(v).count()).toBeLessThan(Number(rows))
  const [, less, narrower] = await type(v, "echo now $(stty size)", /^now (\d+) (\d+)\s*$/m)
  expect(Number(less)).toBe(await rowsOf(v).count())
  expect(Number(narrower)).toBeLessThan(Number(columns))
  await v.page.keyboard.type("exit 3\n")
  await v.page.getByText("The command ended with 3").waitFor()
  expect(v.seen.failures).toEqual([])
})

test("a container without a shell is reported", async () => {
  const v = await visit()
  const [pod = ""] = await podsOf("web")
  await v.go(of("Pod", pod, "shell"))
  await settled(v.page)
  await v.page.getByRole("button", { name: "Open" }).click()
  await v.page.getByText("The container has no such program").waitFor()
  expect(await v.page.locator(".notice").textContent()).toContain('"sh": executable file not found')
})
