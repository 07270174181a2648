import { beforeAll, describe, test } from "vitest"
import { expect, pages, settled, type Visit, visit, withBrowser } from "./world"

withBrowser()

/**
 * In the page: the interactive elements with their look without focus, and those that Tab
 * reached.
 */
interface Stops {
  looks: Map<Element, string>
  came: Set<Element>
  look: (e: Element) => string
}
declare global {
  interface Window {
    stops: Stops
  }
}

/** Collects the elements, and sets the focus before the first one. */
const prepare = (v: Visit) =>
  v.page.evaluate(() => {
    const look = (e: Element) =>
      [e.closest(".cm-editor") ?? e, e.parentElement!]
        .map((of) => getComputedStyle(of))
        .map((s) => [s.outlineStyle === "none" ? "" : s.outline, s.borderColor, s.boxShadow, s.backgroundColor].join())
        .join("|")
    const all = document.querySelectorAll(
      "a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary, [contenteditable=true], [tabindex='0']",
    )
    // In the rows of the table and in tabs, arrow keys move the focus.
    const seen = [...all].filter(
      (e) =>
        e.checkVisibility({ visibilityProperty: true }) &&
        !e.closest("[role=rowgroup], [aria-hidden=true]") &&
        !e.matches("[role=tablist], [role=tab][aria-selected=false]"),
    )
    window.stops = { looks: new Map(seen.map((e) => [e, look(e)])), came: new Set(), look }
    ;(document.activeElement as HTMLElement).blur()
    getSelection()?.collapse(document.body, 0)
  })

/**
 * After a press of Tab: over is set if Tab is back at the start; unseen is the focused element if
 * its focus is not visible.
 */
const step = (v: Visit) =>
  v.page.evaluate(async () => {
    const { looks, came, look } = window.stops
    const e = document.activeElement!
    if (e === document.body || came.has(e)) return { over: true, unseen: "" }
    came.add(e)
    const seen = () => looks.get(e) !== look(e) || getComputedStyle(e).outlineStyle !== "none"
    // The editor shows its focus a moment later.
    for (let frames = 0; frames < 30 && !seen(); frames++) await new Promise(requestAnimationFrame)
    return { over: false, unseen: seen() ? "" : e.outerHTML.slice(0, 200) }
  })

const missed = (v: Visit) =>
  v.page.evaluate(() => {
    const { looks, came } = window.stops
    // Tab reaches one radio button of a group; arrow keys select the others.
    const groups = new Set([...came].map((e) => e instanceof HTMLInputElement && e.type === "radio" && e.name))
    return [...looks.keys()]
      .filter((e) => e.isConnected && !came.has(e) && !(e instanceof HTMLInputElement && e.type === "radio" && groups.has(e.name)))
      .map((e) => e.outerHTML.slice(0, 200))
      .slice(0, 5)
  })

describe("by Tab", () => {
  let v: Visit
  beforeAll(async () => {
    v = await visit()
  })

  const paths = { ...pages, changes: "/changes?type=Deployment.apps", yaml: `${pages.object}&tab=yaml`, relations: `${pages.object}&tab=relations` }
  test.each(Object.entries({ ...paths, grouped: "/table?kind=Deployment.apps&q=ns:demo&group=cluster" }))(
    "Tab reaches all elements of %s, and each shows its focus",
    async (_, path) => {
      await v.go(path)
      await settled(v.page)
      await v.page.waitForLoadState("networkidle")
      await prepare(v)
      const unseen: string[] = []
      for (let i = 0; i < 300; i++) {
        await v.page.keyboard.press("Tab")
        const now = await step(v)
        if (now.over) break
        if (now.unseen) unseen.push(now.unseen)
      }
      expect(unseen).toEqual([])
      expect(await missed(v)).toEqual([])
    },
  )
})
