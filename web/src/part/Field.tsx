import { type InputHTMLAttributes, type ReactNode, useId } from "react"
import { t } from "../text/text"

type Props = { label: string; hint?: ReactNode; error?: string; children: (id: string, describedBy: string | undefined) => ReactNode }

/** An input with its label, and a hint or an error. */
export function Field({ label, hint, error, children }: Props) {
  const id = useId()
  const about = error || hint ? `${id}-about` : undefined
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children(id, about)}
      {about && (
        <div id={about} className={error ? "field-error" : "field-hint"}>
          {error ?? hint}
        </div>
      )}
    </div>
  )
}

/** Asks the user to type a name or number before an action with a large effect. */
export function Typed({ name, value, onChange }: { name: string; value: string; onChange: (typed: string) => void }) {
  return <Field label={t("common.typeName", { name })}>{(id) => <Input id={id} value={value} onChange={(e) => onChange(e.target.value)} />}</Field>
}

export function Input({ className = "", ...rest }: InputHTMLAttributes<HTMLInputElement> & { ref?: React.Ref<HTMLInputElement> }) {
  return <input className={`input ${className}`} spellCheck={false} autoComplete="off" {...rest} />
}
