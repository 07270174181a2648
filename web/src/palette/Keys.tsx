import { useEffect } from "react"
import { useLocation } from "wouter"
import { signOut } from "../hub/session"
import { places } from "../layout/places"
import { setTheme, themes } from "../look/theme"
import { languages, setLanguage, t } from "../text/text"
import { actions, useActions } from "./actions"
import { meaning, nameOf } from "./keys"
import { openPalette } from "./open"
import { hasRows, moveRow } from "./rows"

const sequenceMs = 900

/**
 * Keyboard shortcuts of all pages. A key runs its registered action, unless the user is typing or
 * a dialog is open.
 */
export function useKeys(): void {
  const [, navigate] = useLocation()
  useActions(
    () => {
      const section = t("palette.everywhere")
      const move = (keys: string, title: string, to: Parameters<typeof moveRow>[0]) => ({
        id: `rows.${to}`,
        quiet: true,
        section: t("table.rows"),
        keys,
        title,
        possible: hasRows,
        run: () => moveRow(to),
      })
      return [
        { id: "palette.find", quiet: true, section, keys: "ctrl+k", title: t("palette.find"), run: () => openPalette("find") },
        { id: "palette.command", quiet: true, section, keys: ":", title: t("palette.command"), run: () => openPalette("command") },
        { id: "palette.filter", quiet: true, section, keys: "/", title: t("table.filter"), run: filter },
        ...places.map(({ href, keys, title }) => ({ id: `go.${href}`, section, keys, title: t(title), run: () => navigate(href) })),
        { id: "palette.keys", section, keys: "?", title: t("palette.showKeys"), words: "help", run: () => openPalette("keys") },
        ...(["why", "cordon", "uncordon"] as const).map((word) => ({
          id: `palette.${word}`,
          section,
          title: t(`palette.${word}`),
          words: word,
          run: () => openPalette(word),
        })),
        ...themes.map((theme) => ({
          id: `theme.${theme}`,
          section,
          title: `${t("layout.theme")}: ${t(`layout.${theme}`)}`,
          words: `theme ${theme}`,
          run: () => setTheme(theme),
        })),
        ...languages.map(({ value, label }) => ({
          id: `language.${value}`,
          section,
          title: `${t("layout.language")}: ${label}`,
          words: "language",
          run: () => void setLanguage(value),
        })),
        { id: "signOut", section, title: t("layout.signOut"), words: "sign out log out logout exit", run: () => void signOut() },
        move("j", t("table.down"), "next"),
        move("k", t("table.up"), "before"),
        move("g g", t("table.top"), "first"),
        move("G", t("table.bottom"), "last"),
      ]
    },
    [],
    true,
  )
  useEffect(() => {
    let pending = ""
    let timer = 0
    const onKeyDown = (e: KeyboardEvent) => {
      const name = nameOf(e)
      if (name === "Enter" && !e.isComposing && e.target instanceof Element && e.target.matches("#content .filters > input[type=search]"))
        return moveRow("first")
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

/** Moves the focus to the search field of the page. Without one it opens the palette. */
function filter(): void {
  const field = document.querySelector<HTMLInputElement>("#content :is(input[type=search], input[role=combobox])")
  if (field) field.select()
  else openPalette("find")
}

/**
 * Whether a key is input: in a text field, a list with letter selection, a terminal or an editor.
 */
function writing(target: EventTarget | null): boolean {
  return (
    target instanceof Element &&
    target.closest(
      "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable=true], .xterm, .cm-editor, [role=menu], [role=listbox], [role=combobox]",
    ) !== null
  )
}

const inDialog = () => document.querySelector("[role=dialog], [role=alertdialog]") !== null
