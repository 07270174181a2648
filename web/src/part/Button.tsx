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

/** A button that shows only an icon; its label is the tooltip and is read by screen readers. */
export function IconButton({ label, keys, children, ...rest }: Props & { label: string; keys?: string; children: ReactNode }) {
  return (
    <Tooltip text={label} keys={keys}>
      <Button look="quiet" {...rest} className={`icon ${rest.className ?? ""}`} aria-label={label}>
        {children}
      </Button>
    </Tooltip>
  )
}

/** A button with an icon, and with its label if the page is wide. */
export function SignButton({ sign, label, ...rest }: Props & { sign: IconName; label: string }) {
  return (
    <Button aria-label={label} {...rest}>
      <Icon name={sign} />
      <span className="wide-only">{label}</span>
    </Button>
  )
}
