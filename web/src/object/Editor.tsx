import { autocompletion, type CompletionContext, type CompletionResult, completionKeymap } from "@codemirror/autocomplete"
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands"
import { yaml } from "@codemirror/lang-yaml"
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language"
import { type Diagnostic, forceLinting, linter, lintGutter, lintKeymap } from "@codemirror/lint"
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search"
import { Compartment, EditorState, StateEffect } from "@codemirror/state"
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view"
import { tags } from "@lezer/highlight"
import { useEffect, useRef } from "react"
import type { StatusError } from "../hub/client"
import { t } from "../text/text"
import { locate, read, refused } from "./merge"
import { below, type Document, fieldsOf, placeAt, type Schema, valuesOf } from "./schema"

export type Known = { doc: Document; schema: Schema }

type Props = {
  label: string
  text: string
  known?: Known
  readOnly?: boolean
  onChange?: (text: string) => void
  onSave?: () => void
  /** The API server's refusal of the text; the fields that it names are marked. */
  refusal?: StatusError
}

/**
 * A YAML editor with completion from the kind's schema. A new text prop replaces the content,
 * unless it equals the text that was reported last.
 */
export default function Editor({ label, text, known, readOnly = false, onChange, onSave, refusal }: Props) {
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView>(undefined)
  const reported = useRef(text)
  const now = useRef({ known, onChange, onSave, refusal })
  now.current = { known, onChange, onSave, refusal }
  const lock = useRef(new Compartment())

  // biome-ignore lint/correctness/useExhaustiveDependencies: the effects below pass changes on.
  useEffect(() => {
    const made = new EditorView({
      parent: host.current!,
      state: EditorState.create({
        doc: text,
        extensions: [
          lineNumbers(),
          foldGutter(),
          history(),
          drawSelection(),
          indentOnInput(),
          bracketMatching(),
          highlightActiveLine(),
          highlightSelectionMatches(),
          search({ top: true }),
          yaml(),
          syntaxHighlighting(colours),
          theme,
          lintGutter(),
          linter((v) => problems(v.state.doc.toString(), now.current.refusal), {
            delay: 300,
            needsRefresh: ({ transactions: all }) => all.some((one) => one.effects.some((e) => e.is(refusalChanged))),
          }),
          autocompletion({ override: [(context) => complete(context, now.current.known)], icons: false }),
          EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": "editor-keys", tabindex: "0" }),
          EditorState.tabSize.of(2),
          lock.current.of(locked(readOnly)),
          keymap.of([
            { key: "Mod-s", preventDefault: true, run: () => now.current.onSave?.() ?? true },
            ...completionKeymap,
            ...searchKeymap,
            ...foldKeymap,
            ...lintKeymap,
            ...historyKeymap,
            ...defaultKeymap,
            indentWithTab,
          ]),
          EditorView.updateListener.of((update) => {
            if (!update.docChanged) return
            reported.current = update.state.doc.toString()
            now.current.onChange?.(reported.current)
          }),
        ],
      }),
    })
    view.current = made
    return () => made.destroy()
  }, [])

  useEffect(() => {
    if (text === reported.current || !view.current) return
    reported.current = text
    view.current.dispatch({ changes: { from: 0, to: view.current.state.doc.length, insert: text } })
  }, [text])

  useEffect(() => {
    view.current?.dispatch({ effects: lock.current.reconfigure(locked(readOnly)) })
  }, [readOnly])

  // biome-ignore lint/correctness/useExhaustiveDependencies: each refusal needs its own marks.
  useEffect(() => {
    if (!view.current) return
    view.current.dispatch({ effects: refusalChanged.of(null) })
    forceLinting(view.current)
  }, [refusal])

  return (
    <>
      <div className="editor" ref={host} />
      <p id="editor-keys" className="hidden">
        {t("object.editorKeys")}
      </p>
    </>
  )
}

/**
 * Signals a new refusal to the linter. forceLinting alone runs it only if the text changed a
 * moment ago.
 */
const refusalChanged = StateEffect.define<null>()

// A read-only text can still have the focus, for its keys.
const locked = (readOnly: boolean) => [EditorState.readOnly.of(readOnly)]

function problems(text: string, refusal: StatusError | undefined): Diagnostic[] {
  if (text.trim() === "") return []
  const refusals = refusal ? refused(refusal.status).map(({ path, message }) => ({ message, ...locate(text, path) })) : []
  return [...read(text).problems, ...refusals].map(({ message, from, to }) => ({
    message,
    from: Math.min(from, text.length),
    to: Math.min(to, text.length),
    severity: "error",
  }))
}

function complete(context: CompletionContext, known: Known | undefined): CompletionResult | null {
  if (!known) return null
  const line = context.state.doc.lineAt(context.pos)
  const place = placeAt(context.state.doc.toString(), context.pos)
  const word = /[\w.$-]*$/.exec(line.text.slice(0, context.pos - line.from))?.[0] ?? ""
  const from = context.pos - word.length
  const schema = below(known.doc, known.schema, place.path)
  if (place.value) {
    const options = valuesOf(schema).map((label) => ({ label }))
    return options.length > 0 ? { from, options } : null
  }
  if (!context.explicit && word === "") return null
  const options = fieldsOf(known.doc, schema).map((field) => ({
    label: field.label,
    detail: field.required ? `${field.type} *` : field.type,
    info: field.about || undefined,
    boost: field.required ? 1 : 0,
    apply: `${field.label}:${field.type === "object" || field.type === "map" || field.type === "array" ? "" : " "}`,
  }))
  return options.length > 0 ? { from, options, validFor: /^[\w.$-]*$/ } : null
}

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.content], color: "var(--text)" },
  { tag: tags.comment, color: "var(--faint)", fontStyle: "italic" },
  { tag: [tags.punctuation, tags.separator, tags.meta], color: "var(--muted)" },
])

const theme = EditorView.theme({
  "&": { height: "100%", fontSize: "var(--t2)", color: "var(--text)", backgroundColor: "var(--surface)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--faint)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--hover) 60%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft) !important" },
  ".cm-tooltip": { background: "var(--surface)", border: "1px solid var(--line)", borderRadius: "var(--radius)", color: "var(--text)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionInfo": { maxWidth: "360px", whiteSpace: "pre-wrap" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-panels": { background: "var(--sunken)", color: "var(--text)" },
  ".cm-textfield": { background: "var(--surface)", border: "1px solid var(--line-strong)" },
  ".cm-button": { background: "var(--surface)", border: "1px solid var(--line-strong)" },
  ".cm-foldPlaceholder": { background: "var(--hover)", border: "0", color: "var(--muted)" },
})
