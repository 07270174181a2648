import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from "react"
import type { Counts } from "../hub/client"
import { get, mirrored } from "../hub/client"
import type { Kind } from "../hub/kinds"
import { IconButton } from "../part/Button"
import { Icon } from "../part/Icon"
import { t } from "../text/text"
import { accept, complete, completion, counted, keyAt } from "./query"

/**
 * The existing values of a key, from counts of the list. They are requested when the user types
 * the key.
 */
function useValues(path: string | undefined, key: string | undefined): string[] {
  const by = key && path ? counted[key] : undefined
  const name = `${path} ${by}`
  const [values, setValues] = useState<Record<string, string[]>>({})
  const known = name in values
  useEffect(() => {
    if (!by || known) return
    const abort = new AbortController()
    get<Counts>(mirrored() + path, { group: by }, abort.signal)
      .then((counts) => setValues((old) => ({ ...old, [name]: (counts.groups ?? []).map((g) => g.values[0] ?? "") })))
      .catch(() => {})
    return () => abort.abort()
  }, [by, known, name, path])
  return values[name] ?? []
}

type Props = {
  value: string
  kinds: Kind[]
  path?: string
  onChange: (q: string) => void
  onLeave: () => void
}

export function QueryBox({ value, kinds, path, onChange, onLeave }: Props) {
  const id = useId()
  const [text, setText] = useState(value)
  const [cursor, setCursor] = useState(value.length)
  const [open, setOpen] = useState(false)
  const [at, setAt] = useState(-1)
  const input = useRef<HTMLInputElement>(null)
  const timer = useRef(0)

  useEffect(() => {
    setText((now) => (now.trim() === value ? now : value))
  }, [value])

  // A user who leaves the page is not returned to it by a pending change.
  useEffect(() => () => clearTimeout(timer.current), [])

  const values = useValues(path, open ? keyAt(text, cursor) : undefined)
  const found = useMemo(() => completion(text, cursor, kinds, values), [text, cursor, kinds, values])
  const options = open ? found.options : []

  const change = (next: string, now = false) => {
    setText(next)
    clearTimeout(timer.current)
    if (now) onChange(next.trim())
    else if (complete(next.trim())) timer.current = window.setTimeout(() => onChange(next.trim()), 350)
  }
  const take = (option: string) => {
    const next = accept(text, cursor, found.from, option)
    setCursor(next.cursor)
    setAt(-1)
    change(next.q)
    requestAnimationFrame(() => input.current?.setSelectionRange(next.cursor, next.cursor))
  }
  const onKeyDown = (e: KeyboardEvent<HTMLInputElement>) => {
    if (e.nativeEvent.isComposing) return
    if (e.key === "ArrowDown" && options.length) setAt((at + 1) % options.length)
    else if (e.key === "ArrowUp" && options.length) setAt((at - 1 + options.length) % options.length)
    else if (e.key === "Tab" && open && options.length && found.key !== undefined && at >= 0) take(options[at]!)
    else if (e.key === "Enter") {
      if (options[at]) take(options[at])
      else {
        setOpen(false)
        change(text, true)
        onLeave()
      }
    } else if (e.key === "Escape") {
      if (open && options.length) setOpen(false)
      else onLeave()
    } else return
    e.preventDefault()
  }
  return (
    <search className="query">
      <Icon name="search" />
      <input
        ref={input}
        className="input"
        role="combobox"
        aria-label={t("table.query")}
        aria-expanded={options.length > 0}
        aria-controls={`${id}-options`}
        aria-autocomplete="list"
        aria-activedescendant={options[at] ? `${id}-${at}` : undefined}
        placeholder={t("table.queryHint")}
        spellCheck={false}
        autoComplete="off"
        autoCapitalize="none"
        value={text}
        onChange={(e) => {
          setCursor(e.target.selectionStart ?? e.target.value.length)
          setAt(-1)
          setOpen(true)
          change(e.target.value)
        }}
        onSelect={(e) => setCursor(e.currentTarget.selectionStart ?? 0)}
        onFocus={() => setOpen(text !== "")}
        onBlur={() => {
          setOpen(false)
          if (text.trim() !== value) change(text, true)
        }}
        onKeyDown={onKeyDown}
      />
      {text && (
        <IconButton
          label={t("table.clear")}
          onClick={() => {
            change("", true)
            input.current?.focus()
          }}
        >
          <Icon name="close" />
        </IconButton>
      )}
      <div id={`${id}-options`} role="listbox" aria-label={t("table.options")} className={options.length ? "menu query-options" : "hidden"}>
        {options.map((option, i) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the box handles keys.
          <div
            key={option}
            id={`${id}-${i}`}
            role="option"
            aria-selected={i === at}
            data-highlighted={i === at ? "" : undefined}
            className="menu-item mono"
            onMouseDown={(e) => e.preventDefault()}
            onClick={() => take(option)}
          >
            {option}
          </div>
        ))}
      </div>
    </search>
  )
}
