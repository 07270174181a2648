import { connect, createServer, type Server } from "node:net"
import { afterAll, beforeAll, test } from "vitest"
import { withLoad } from "./load"
import { origin, settled, visit, withBrowser } from "./world"

// Measures the browser with 100,000 pods in 50 clusters, where 200 pods change each second.
// MINUTES is how long the page stays open.

const minutes = Number(process.env.MINUTES ?? 10)
const through = 20_000 + (process.pid % 10_000)
let wire = 0
let door: Server

withBrowser(`--host-resolver-rules=MAP * 127.0.0.1:${through}`)
withLoad({ clusters: 50, pods: 100_000, rate: 200 })

// A proxy counts the bytes of the browser's connections, encrypted and compressed.
beforeAll(async () => {
  const { port, hostname } = new URL(await origin())
  door = createServer((here) => {
    const there = connect(Number(port), hostname)
    there.on("data", (d) => {
      wire += d.length
    })
    here.pipe(there).pipe(here)
    for (const end of [here, there]) end.on("error", () => here.destroy())
  })
  await new Promise<void>((listens) => door.listen(through, "127.0.0.1", listens))
})
afterAll(() => {
  door.close()
})

const at = (sorted: number[], part: number) => Math.round(sorted[Math.floor(part * (sorted.length - 1))] ?? Number.NaN)
const report = (what: string, values: number[]) => {
  values.sort((a, b) => a - b)
  console.info(`${what}: p50 ${at(values, 0.5)}, p95 ${at(values, 0.95)}, worst ${at(values, 1)} (${values.length})`)
}

test(
  "figures",
  async () => {
    const v = await visit()
    await v.page.addInitScript(() => {
      const watch = new MutationObserver(() => {
        if (!document.querySelector(".grid-row:not(.absent)")) return
        watch.disconnect()
        document.documentElement.dataset.first = String(performance.now())
      })
      watch.observe(document, { subtree: true, childList: true })
    })
    const first: number[] = []
    for (let i = 0; i < 20; i++) {
      await v.go("/table?kind=Pod")
      await settled(v.page)
      await v.page.locator("html[data-first]").waitFor()
      first.push(Number(await v.page.locator("html").getAttribute("data-first")))
    }
    report("first rows after navigation, ms", first)

    const devtools = await v.context.newCDPSession(v.page)
    await devtools.send("Performance.enable")
    const metric = async (name: string) => (await devtools.send("Performance.getMetrics")).metrics.find((m) => m.name === name)?.value ?? Number.NaN
    const spent = ["ScriptDuration", "LayoutDuration", "RecalcStyleDuration", "TaskDuration"]
    const before = await Promise.all(spent.map(metric))
    const frames = await v.page.evaluate(async () => {
      const body = document.querySelector(".grid-body")!
      const took: number[] = []
      let last = await new Promise<number>(requestAnimationFrame)
      for (let i = 0; i < 600; i++) {
        body.scrollTop += 84
        const now = await new Promise<number>(requestAnimationFrame)
        took.push(now - last)
        last = now
      }
      return took
    })
    const after = await Promise.all(spent.map(metric))
    report("frames while scrolling, ms", frames)
    console.info(`of each: ${spent.map((name, i) => `${name} ${((1000 * (after[i]! - before[i]!)) / frames.length).toFixed(1)} ms`).join(", ")}`)

    await v.page.evaluate(() => document.querySelector(".grid-body")!.scrollTo({ top: 0 }))
    await v.page.waitForTimeout(5000)
    const [from, began] = [wire, Date.now()]
    await v.page.waitForTimeout(minutes * 60_000)
    console.info(`on the wire: ${((wire - from) / (Date.now() - began)).toFixed(1)} kB/s`)
    await devtools.send("HeapProfiler.collectGarbage")
    console.info(`heap after ${minutes} minutes: ${((await metric("JSHeapUsedSize")) / 1e6).toFixed(1)} MB`)
  },
  (minutes + 5) * 60_000,
)
