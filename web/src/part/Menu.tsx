import { DropdownMenu as Radix } from "radix-ui"
import { createContext, type ReactNode, use, useRef } from "react"
import { Icon } from "./Icon"
import { KeyHint } from "./KeyHint"

/**
 * The action to run after the menu has closed and its button has the focus again. A dialog that
 * the action opens then returns the focus to the button.
 */
const Closed = createContext<{ act?: () => void }>({})

export function Menu({ trigger, children, align = "end" }: { trigger: ReactNode; children: ReactNode; align?: "start" | "end" }) {
  const closed = useRef<{ act?: () => void }>({}).current
  const onClosed = () => {
    const { act } = closed
    closed.act = undefined
    if (act) queueMicrotask(act)
  }
  return (
    <Radix.Root modal={false}>
      <Radix.Trigger asChild>{trigger}</Radix.Trigger>
      <Radix.Portal>
        <Radix.Content className="menu" align={align} sideOffset={4} collisionPadding={8} onCloseAutoFocus={onClosed}>
          <Closed value={closed}>{children}</Closed>
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  )
}

type ItemProps = { children: ReactNode; keys?: string; danger?: boolean; disabled?: boolean; onSelect: () => void }

export function MenuItem({ children, keys, danger, disabled, onSelect }: ItemProps) {
  const closed = use(Closed)
  const onChosen = () => {
    closed.act = onSelect
  }
  return (
    <Radix.Item className={`menu-item ${danger ? "danger" : ""}`} disabled={disabled} onSelect={onChosen}>
      {children}
      {keys && <KeyHint keys={keys} />}
    </Radix.Item>
  )
}

/** An item that can be switched on and off; the menu stays open. */
export function MenuToggle({ checked, onChange, children }: { checked: boolean; onChange: (on: boolean) => void; children: ReactNode }) {
  return (
    <Radix.CheckboxItem className="menu-item" checked={checked} onCheckedChange={onChange} onSelect={(e) => e.preventDefault()}>
      {children}
      <Radix.ItemIndicator className="menu-check">
        <Icon name="check" />
      </Radix.ItemIndicator>
    </Radix.CheckboxItem>
  )
}

type ChoiceProps<T> = { label: string; value: T; options: { value: T; label: string }[]; onChange: (value: T) => void }

export function MenuChoice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  return (
    <Radix.Group>
      <Radix.Label className="menu-label">{label}</Radix.Label>
      <Radix.RadioGroup value={value} onValueChange={(v) => onChange(v as T)}>
        {options.map((o) => (
          <Radix.RadioItem key={o.value} className="menu-item" value={o.value}>
            {o.label}
            <Radix.ItemIndicator className="menu-check">
              <Icon name="check" />
            </Radix.ItemIndicator>
          </Radix.RadioItem>
        ))}
      </Radix.RadioGroup>
    </Radix.Group>
  )
}

export const MenuLabel = ({ children }: { children: ReactNode }) => <Radix.Label className="menu-label">{children}</Radix.Label>
export const MenuLine = () => <Radix.Separator className="menu-line" />
