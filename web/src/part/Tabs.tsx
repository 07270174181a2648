import { Tabs as Radix } from "radix-ui"
import { type ReactNode, useEffect, useRef } from "react"

export type Tab = { value: string; label: ReactNode; content: ReactNode }

/** Only the selected tab is rendered. */
export function Tabs({ label, value, tabs, onChange }: { label: string; value: string; tabs: Tab[]; onChange: (value: string) => void }) {
  const list = useRef<HTMLDivElement>(null)
  // Scrolls the selected tab into view in a row that is wider than the screen. The page itself
  // does not scroll.
  // biome-ignore lint/correctness/useExhaustiveDependencies: value selects the tab to show.
  useEffect(() => {
    const chosen = list.current?.querySelector<HTMLElement>('[data-state="active"]')
    if (list.current && chosen) list.current.scrollLeft = chosen.offsetLeft - list.current.offsetLeft - (list.current.clientWidth - chosen.offsetWidth) / 2
  }, [value])
  return (
    <Radix.Root className="tabs" value={value} onValueChange={onChange}>
      <Radix.List ref={list} className="tab-list" aria-label={label}>
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
