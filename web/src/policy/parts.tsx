import { type ReactNode, useState } from "react"
import { Button, IconButton } from "../part/Button"
import { Field, Input } from "../part/Field"
import { Icon } from "../part/Icon"
import { Select } from "../part/Select"
import { type Key, t } from "../text/text"
import { append, at, labelLine, labels, list, names, type Path, put, remove, text, type Value } from "./form"

// What the forms of policies are made of. Each part shows one field of the object and puts it back.

export interface Form {
  object: Value
  onChange: (object: Value) => void
  readOnly: boolean
}

type Part = Form & { path: Path; label: string; hint?: string; placeholder?: string; error?: string }

export function TextField({ object, onChange, readOnly, path, label, hint, placeholder, error }: Part) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(id, about) => (
        <Input
          id={id}
          aria-describedby={about}
          readOnly={readOnly}
          placeholder={placeholder}
          value={text(object, path)}
          onChange={(e) => onChange(put(object, path, e.target.value))}
        />
      )}
    </Field>
  )
}

export function NumberField({
  object,
  onChange,
  readOnly,
  path,
  label,
  hint,
  placeholder,
  error,
  min = 0,
}: Part & { min?: number }) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(id, about) => (
        <Input
          id={id}
          aria-describedby={about}
          type="number"
          min={min}
          readOnly={readOnly}
          placeholder={placeholder}
          value={text(object, path)}
          onChange={(e) => onChange(put(object, path, e.target.value === "" ? undefined : Number(e.target.value)))}
        />
      )}
    </Field>
  )
}

export function CheckField({ object, onChange, readOnly, path, label, hint }: Part) {
  return (
    <label className="choice">
      <input
        type="checkbox"
        disabled={readOnly}
        checked={at(object, path) === true}
        onChange={(e) => onChange(put(object, path, e.target.checked || undefined))}
      />
      <span>
        <strong>{label}</strong>
        {hint && <span className="muted">{hint}</span>}
      </span>
    </label>
  )
}

/** One of a few values; the first is what counts where nothing is said, and takes the field away if it is chosen. */
export function ChoiceField({
  object,
  onChange,
  readOnly,
  path,
  label,
  hint,
  options,
}: Part & { options: { value: string; label: string }[] }) {
  const first = options[0]?.value ?? ""
  const value = text(object, path) || first
  const known = options.some((o) => o.value === value)
  return (
    <Field label={label} hint={hint}>
      {(id) =>
        readOnly ? (
          <Input id={id} readOnly value={options.find((o) => o.value === value)?.label ?? value} />
        ) : (
          <Select
            id={id}
            label={label}
            value={value}
            options={known ? options : [...options, { value, label: value }]}
            onChange={(v) => onChange(put(object, path, v === first ? undefined : v))}
          />
        )
      }
    </Field>
  )
}

/** A line that means a value: what does not is said, and not put, while it is written. */
function LineField<V>({
  value,
  show,
  read,
  onValue,
  wrong,
  label,
  hint,
  placeholder,
  readOnly,
}: {
  value: V
  show: (value: V) => string
  read: (line: string) => V | undefined
  onValue: (value: V) => void
  wrong: string
  label: string
  hint?: string
  placeholder?: string
  readOnly: boolean
}) {
  const [draft, setDraft] = useState<string>()
  const parsed = draft === undefined ? value : read(draft)
  return (
    <Field label={label} hint={hint} error={parsed === undefined ? wrong : undefined}>
      {(id, about) => (
        <Input
          id={id}
          aria-describedby={about}
          readOnly={readOnly}
          placeholder={placeholder}
          value={draft ?? show(value)}
          onChange={(e) => {
            setDraft(e.target.value)
            const next = read(e.target.value)
            if (next !== undefined) onValue(next)
          }}
          onBlur={() => parsed !== undefined && setDraft(undefined)}
        />
      )}
    </Field>
  )
}

export function NamesField({ object, onChange, path, ...rest }: Part) {
  return (
    <LineField
      {...rest}
      value={list(object, path).map(String)}
      show={(v) => v.join(", ")}
      read={names}
      wrong=""
      onValue={(v) => onChange(put(object, path, v))}
    />
  )
}

export function LabelsField({ object, onChange, path, ...rest }: Part) {
  return (
    <LineField
      {...rest}
      placeholder={rest.placeholder ?? "key=value, …"}
      value={(at(object, path) ?? {}) as Record<string, string>}
      show={labelLine}
      read={labels}
      wrong={t("policy.badLabels")}
      onValue={(v) => onChange(put(object, path, v))}
    />
  )
}

/** A value of any type, written as JSON; what is no JSON is a text. */
export function JSONField({ object, onChange, path, ...rest }: Part) {
  return (
    <LineField<{ v: Value }>
      {...rest}
      value={{ v: at(object, path) }}
      show={({ v }) => (v === undefined ? "" : typeof v === "string" && !looksLikeJSON(v) ? v : JSON.stringify(v))}
      read={(line) => ({ v: line === "" ? undefined : parse(line) })}
      wrong=""
      onValue={({ v }) => onChange(put(object, path, v))}
    />
  )
}

function parse(line: string): Value {
  try {
    return JSON.parse(line)
  } catch {
    return line
  }
}

const looksLikeJSON = (v: string) => typeof parse(v) !== "string" || v.startsWith('"')

/** A list of which each element is a small form. */
export function Rows({
  object,
  onChange,
  readOnly,
  path,
  title,
  hint,
  add,
  fresh,
  children,
}: Form & {
  path: Path
  title: string
  hint?: string
  add: string
  fresh: Value
  children: (path: Path, index: number) => ReactNode
}) {
  const items = list(object, path)
  return (
    <fieldset className="rows">
      <legend>{title}</legend>
      {hint && <p className="field-hint">{hint}</p>}
      {items.map((_, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: elements have no names.
        <div className="rows-item" key={i}>
          <div className="rows-fields">{children([...path, i], i)}</div>
          {!readOnly && (
            <IconButton label={t("policy.remove", { what: title, n: i + 1 })} onClick={() => onChange(remove(object, path, i))}>
              <Icon name="close" />
            </IconButton>
          )}
        </div>
      ))}
      {!readOnly && (
        <Button look="quiet" onClick={() => onChange(append(object, path, fresh))}>
          <Icon name="plus" /> {add}
        </Button>
      )}
    </fieldset>
  )
}

/** The options of a choice whose labels are texts of policies. */
export const options = (...pairs: [string, Key][]) => pairs.map(([value, key]) => ({ value, label: t(key) }))
