import { Tabs as Radix } from "radix-ui"
import type { ReactNode } from "react"

export type Tab = { value: string; label: ReactNode; content: ReactNode }

/** Only the chosen tab is there. */
export function Tabs({ label, value, tabs, onChange }: { label: string; value: string; tabs: Tab[]; onChange: (value: string) => void }) {
  return (
    <Radix.Root className="tabs" value={value} onValueChange={onChange}>
      <Radix.List className="tab-list" aria-label={label}>
        {tabs.map((tab) => (
          <Radix.Trigger key={tab.value} className="tab" value={tab.value}>
            {tab.label}
          </Radix.Trigger>
        ))}
      </Radix.List>
      {tabs.map((tab) => (
        <Radix.Content key={tab.value} className="tab-content" value={tab.value} tabIndex={-1}>
          {tab.content}
        </Radix.Content>
      ))}
    </Radix.Root>
  )
}
