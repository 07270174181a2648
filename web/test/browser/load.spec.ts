import { test } from "vitest"
import { withLoad } from "./load"
import { expect, settled, visit, withBrowser } from "./world"

withBrowser()
// The bounds do not depend on the number of rows. make soak tests the number in the documents.
const many = process.env.SOAK ? 100_000 : 20_000
withLoad({ clusters: 5, pods: many })

// Bounds of counts, which are the same on any machine. Durations are measured by a benchmark.
const budget = { elements: 1500, layouts: 3, rows: 10, heapMB: 60, grownMB: 5 }

test(`a table of ${many} rows has only the rows on screen in the document, and memory stays bounded`, async () => {
  const v = await visit()
  await v.go("/table?kind=Pod")
  await settled(v.page)
  await v.page.locator(".grid-row:not(.absent)").first().waitFor()
  const grid = v.page.getByRole("grid")
  expect(Number(await grid.getAttribute("aria-rowcount"))).toBeGreaterThan(many)
  const devtools = await v.context.newCDPSession(v.page)
  await devtools.send("Performance.enable")
  const measured = async () => {
    await devtools.send("HeapProfiler.collectGarbage")
    const { metrics } = await devtools.send("Performance.getMetrics")
    const of = (name: string) => metrics.find((m) => m.name === name)?.value ?? Number.NaN
    return { layouts: of("LayoutCount"), heapMB: of("JSHeapUsedSize") / 1e6, elements: await v.page.evaluate(() => document.querySelectorAll("*").length) }
  }
  /** Scrolls three rows per frame and counts the rows that were rendered again in each. */
  const scroll = (frames: number) =>
    v.page.evaluate(async (n) => {
      const body = document.querySelector(".grid-body")!
      const rows = new Set<Element>()
      const watch = new MutationObserver((all) => {
        for (const m of all) {
          const row = (m.target instanceof Element ? m.target : m.target.parentElement)?.closest(".grid-row")
          if (row) rows.add(row)
        }
      })
      watch.observe(body, { subtree: true, childList: true, characterData: true, attributes: true })
      const counts: number[] = []
      for (let i = 0; i < n; i++) {
        body.scrollTop += 84
        await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)))
        counts.push(rows.size)
        rows.clear()
      }
      watch.disconnect()
      return counts.sort((a, b) => a - b)
    }, frames)
  await scroll(50)
  const before = await measured()
  expect(before.elements).toBeLessThan(budget.elements)
  const frames = 300
  const counts = await scroll(frames)
  const after = await measured()
  console.info({ before, after, rows: [counts[frames / 2], counts.at(-1)] })
  // Holds for most frames: a frame in which an answer arrives also renders the rows that were
  // missing.
  expect(counts[frames / 2]).toBeLessThanOrEqual(budget.rows)
  expect((after.layouts - before.layouts) / frames).toBeLessThanOrEqual(budget.layouts)
  expect(after.elements).toBeLessThan(budget.elements)

  // To the last row by keyboard, then to positions in between.
  await grid.focus()
  await v.page.keyboard.press("End")
  const last = Number(await grid.getAttribute("aria-rowcount"))
  await v.page.locator(`[aria-rowindex="${last}"]:not(.absent)`).waitFor()
  for (let i = 1; i <= 20; i++) {
    await v.page.evaluate((part) => {
      const body = document.querySelector(".grid-body")!
      body.scrollTop = part * body.scrollHeight
    }, i / 21)
    await v.page.locator(".grid-row:not(.absent)").first().waitFor()
  }
  const everywhere = await measured()
  expect(everywhere.elements).toBeLessThan(budget.elements)
  expect(everywhere.heapMB).toBeLessThan(budget.heapMB)
  // Short-term growth depends on the requests in progress: only make soak, on an otherwise idle
  // machine, checks this bound.
  if (process.env.SOAK) expect(everywhere.heapMB - before.heapMB).toBeLessThan(budget.grownMB)
  expect(v.seen.errors).toEqual([])
})
