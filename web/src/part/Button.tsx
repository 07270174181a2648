import type { ButtonHTMLAttributes, ReactNode } from "react"
import { Icon, type IconName } from "./Icon"
import { Tooltip } from "./Tooltip"

type Props = ButtonHTMLAttributes<HTMLButtonElement> & {
  look?: "plain" | "main" | "danger" | "quiet"
  ref?: React.Ref<HTMLButtonElement>
}

export function Button({ look = "plain", className = "", ...rest }: Props) {
  return <button type="button" className={`button ${look} ${className}`} {...rest} />
}

/** A button that shows only a sign; its label is for screen readers and as a tooltip. */
export function IconButton({ label, keys, children, ...rest }: Props & { label: string; keys?: string; children: ReactNode }) {
  return (
    <Tooltip text={label} keys={keys}>
      <Button look="quiet" {...rest} className={`icon ${rest.className ?? ""}`} aria-label={label}>
        {children}
      </Button>
    </Tooltip>
  )
}

/** A sign, and its word where there is room. */
export function SignButton({ sign, label, ...rest }: Props & { sign: IconName; label: string }) {
  return (
    <Button aria-label={label} {...rest}>
      <Icon name={sign} />
      <span className="wide-only">{label}</span>
    </Button>
  )
}
