import { useEffect } from "react"
import { useLocation } from "wouter"
import { t } from "../text/text"
import { actions, useActions } from "./actions"
import { meaning, nameOf } from "./keys"
import { openPalette } from "./open"

const sequenceMs = 900

/** Keys everywhere: they go to what was registered, unless somebody is writing, or a dialog is open. */
export function useKeys(): void {
  const [, navigate] = useLocation()
  useActions(() => {
    const section = t("palette.everywhere")
    const go = (keys: string, href: string, title: string) => ({
      id: `go.${href}`,
      section,
      keys,
      title,
      run: () => navigate(href),
    })
    return [
      { id: "palette.find", quiet: true, section, keys: "ctrl+k", title: t("palette.find"), run: () => openPalette("find") },
      { id: "palette.command", quiet: true, section, keys: ":", title: t("palette.command"), run: () => openPalette("command") },
      { id: "palette.filter", quiet: true, section, keys: "/", title: t("table.filter"), run: filter },
      { id: "palette.keys", quiet: true, section, keys: "?", title: t("palette.showKeys"), run: () => openPalette("keys") },
      go("g f", "/", t("fleet.title")),
      go("g t", "/table", t("table.title")),
      go("g p", "/policies", t("policy.title")),
      go("g c", "/changes", t("change.title")),
      go("g o", "/operations", t("operation.title")),
      { id: "go./join", title: t("join.title"), run: () => navigate("/join") },
    ]
  }, [])
  useEffect(() => {
    let pending = ""
    let timer = 0
    const onKeyDown = (e: KeyboardEvent) => {
      const name = nameOf(e)
      if (e.altKey || e.isComposing || e.defaultPrevented || (name !== "ctrl+k" && (writing(e.target) || inDialog()))) return
      const found = meaning(actions(), pending, name)
      pending = found.pending
      clearTimeout(timer)
      if (pending) timer = window.setTimeout(() => (pending = ""), sequenceMs)
      if (!found.action) return
      // Enter and Space belong to the button or link that has the focus.
      if (name === "Enter" && e.target instanceof Element && e.target.closest("a, button, summary")) return
      e.preventDefault()
      found.action.run()
    }
    window.addEventListener("keydown", onKeyDown)
    return () => window.removeEventListener("keydown", onKeyDown)
  }, [])
}

/** Puts whoever looks for something into the field of the page for that; where it has none, they look everywhere. */
function filter(): void {
  const field = document.querySelector<HTMLInputElement>("#content :is(input[type=search], input[role=combobox])")
  if (field) field.select()
  else openPalette("find")
}

/** Whoever writes, chooses by the first letter, or works in a terminal or an editor, means the character. */
function writing(target: EventTarget | null): boolean {
  return (
    target instanceof Element &&
    target.closest(
      "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable=true], .xterm, .cm-editor, [role=menu], [role=listbox], [role=combobox]",
    ) !== null
  )
}

const inDialog = () => document.querySelector("[role=dialog], [role=alertdialog]") !== null
