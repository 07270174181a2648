import { Select as Radix } from "radix-ui"
import { Icon } from "./Icon"

type Option = { value: string; label: string }

type Props = { id?: string; label: string; value: string; options: Option[]; onChange: (value: string) => void }

/** A choice of one option. A value may be empty. */
export function Select({ id, label, value, options, onChange }: Props) {
  return (
    <Radix.Root value={`=${value}`} onValueChange={(v) => onChange(v.slice(1))}>
      <Radix.Trigger id={id} className="select" aria-label={label}>
        <Radix.Value />
        <Icon name="down" />
      </Radix.Trigger>
      <Radix.Portal>
        <Radix.Content className="menu" position="popper" sideOffset={4} collisionPadding={8}>
          <Radix.Viewport>
            {options.map((o) => (
              <Radix.Item key={o.value} value={`=${o.value}`} className="menu-item">
                <Radix.ItemText>{o.label}</Radix.ItemText>
                <Radix.ItemIndicator className="menu-check">
                  <Icon name="check" />
                </Radix.ItemIndicator>
              </Radix.Item>
            ))}
          </Radix.Viewport>
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  )
}
