import { useState } from "react"
import { Button, IconButton } from "../part/Button"
import { Field, Input } from "../part/Field"
import { Icon } from "../part/Icon"
import { Select } from "../part/Select"
import { t } from "../text/text"
import type { Spec } from "./fields"
import { append, at, labelLine, labels, list, names, oneOf, type Path, type Problem, put, remove, setOneOf, text, unseen, type Value } from "./form"

export interface Form {
  object: Value
  onChange: (object: Value) => void
  readOnly: boolean
  problems: Problem[]
}

/** The fields of the object at a path. Each shows and sets one value. */
export function Fields({ specs, path, ...form }: Form & { specs: Spec[]; path: Path }) {
  return specs.filter((s) => s.when?.(at(form.object, path)) ?? true).map((s) => <One key={`${s.as} ${s.at.join("/")}`} spec={s} path={path} {...form} />)
}

function One({ spec, path: of, ...form }: Form & { spec: Spec; path: Path }) {
  const path = [...of, ...spec.at]
  const { object, onChange, readOnly, problems } = form
  const problem = problems.find((p) => p.path.join("/") === path.join("/"))
  const error = problem && t(`policy.${problem.key}`)
  const set = (value: Value) => onChange(put(object, path, value))
  const field = { label: t(spec.label), hint: spec.hint && t(spec.hint), error, example: spec.example, readOnly }
  switch (spec.as) {
    case "text":
      return <Line {...field} value={text(object, path)} read={(v) => v} onValue={set} />
    case "number":
      return <Line {...field} type="number" value={text(object, path)} read={(v) => v} onValue={(v) => set(v === "" ? undefined : Number(v))} />
    case "names":
      return <Line {...field} value={list(object, path).map(String).join(", ")} read={names} onValue={set} />
    case "labels":
      return <Line {...field} value={labelLine(at(object, path))} read={labels} onValue={set} wrong={t("policy.badLabels")} />
    case "json":
      return <Line {...field} value={show(at(object, path))} read={(v) => ({ v: v === "" ? undefined : parse(v) })} onValue={({ v }) => set(v)} />
    case "oneOf": {
      const affinity = path.slice(0, -1)
      const key = String(path.at(-1))
      const value = oneOf(at(object, affinity), key).join(", ")
      return <Line {...field} value={value} read={names} onValue={(v) => onChange(put(object, affinity, setOneOf(at(object, affinity), key, v)))} />
    }
    case "unseen": {
      const n = unseen(at(object, path))
      return n > 0 ? <p className="field-hint">{t("policy.unseen", { n })}</p> : null
    }
    case "check":
      return <Check {...field} checked={at(object, path) === true} onChange={(on) => set(on || undefined)} />
    case "switch": {
      const [key = ""] = Object.keys(spec.value as object)
      return <Check {...field} checked={at(object, [...path, key]) !== undefined} onChange={(on) => set(on ? spec.value : undefined)} />
    }
    case "choice": {
      const first = spec.options[0]?.[0] ?? ""
      const value = text(object, path) || first
      const options = spec.options.map(([v, key]) => ({ value: v, label: t(key) }))
      if (!options.some((o) => o.value === value)) options.push({ value, label: value })
      return (
        <Field label={field.label} hint={field.hint} error={error}>
          {(id) =>
            readOnly ? (
              <Input id={id} readOnly value={options.find((o) => o.value === value)?.label} />
            ) : (
              <Select id={id} label={field.label} value={value} options={options} onChange={(v) => set(v === first ? undefined : v)} />
            )
          }
        </Field>
      )
    }
    case "rows":
      return (
        <fieldset className="rows">
          <legend>{field.label}</legend>
          {error && <p className="field-error">{error}</p>}
          {field.hint && <p className="field-hint">{field.hint}</p>}
          {list(object, path).map((_, i) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: elements have no names.
            <div className="rows-item" key={i}>
              <div className="rows-fields">
                <Fields {...form} specs={spec.fields} path={[...path, i]} />
              </div>
              {!readOnly && (
                <IconButton label={t("policy.remove", { what: field.label, n: i + 1 })} onClick={() => onChange(remove(object, path, i))}>
                  <Icon name="close" />
                </IconButton>
              )}
            </div>
          ))}
          {!readOnly && (
            <Button look="quiet" onClick={() => onChange(append(object, path, spec.fresh(list(object, path).length)))}>
              <Icon name="plus" /> {t(spec.add)}
            </Button>
          )}
        </fieldset>
      )
  }
}

interface LineProps<V> {
  label: string
  hint?: string
  error?: string
  example?: string
  readOnly: boolean
  type?: string
  value: string
  /**
   * The value of an input; undefined: invalid. An invalid input shows the error and sets no
   * value.
   */
  read: (line: string) => V | undefined
  onValue: (value: V) => void
  wrong?: string
}

/** An input for a value. While the user edits, it keeps the text as typed. */
function Line<V>({ label, hint, error, example, readOnly, type, value, read, onValue, wrong }: LineProps<V>) {
  const [draft, setDraft] = useState<string>()
  const senseless = draft !== undefined && read(draft) === undefined
  return (
    <Field label={label} hint={hint} error={senseless ? wrong : error}>
      {(id, about) => (
        <Input
          id={id}
          aria-describedby={about}
          type={type}
          readOnly={readOnly}
          placeholder={example}
          value={draft ?? value}
          onChange={(e) => {
            setDraft(e.target.value)
            const next = read(e.target.value)
            if (next !== undefined) onValue(next)
          }}
          onBlur={() => !senseless && setDraft(undefined)}
        />
      )}
    </Field>
  )
}

type CheckProps = { label: string; hint?: string; readOnly: boolean; checked: boolean; onChange: (on: boolean) => void }

function Check({ label, hint, readOnly, checked, onChange }: CheckProps) {
  return (
    <label className="option">
      <input type="checkbox" disabled={readOnly} checked={checked} onChange={(e) => onChange(e.target.checked)} />
      <span>
        <strong>{label}</strong>
        {hint && <span className="muted">{hint}</span>}
      </span>
    </label>
  )
}

function parse(line: string): Value {
  try {
    return JSON.parse(line)
  } catch {
    return line
  }
}

/** A value as JSON. A string is quoted only if JSON would parse it as another value. */
function show(v: Value): string {
  if (v === undefined) return ""
  return typeof v === "string" && parse(v) === v ? v : JSON.stringify(v)
}
