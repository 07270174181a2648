import type { ReactNode } from "react"
import { Input } from "./Field"

type Props = { label: string; hint?: string; value: string; onChange: (words: string) => void; children?: ReactNode }

/**
 * The field that filters the rows of a page. `/` moves the focus to the field, and Enter to the
 * first row.
 */
export function Filter({ label, hint, value, onChange, children }: Props) {
  return (
    <div className="filters" role="search">
      <Input type="search" aria-label={label} placeholder={hint} value={value} onChange={(e) => onChange(e.target.value)} />
      {children}
    </div>
  )
}
