import { Tooltip as Radix } from "radix-ui"
import type { ReactNode } from "react"
import { KeyHint } from "./KeyHint"

export function Tooltip({ text, keys, children }: { text: ReactNode; keys?: string; children: ReactNode }) {
  return (
    <Radix.Root>
      <Radix.Trigger asChild>{children}</Radix.Trigger>
      <Radix.Portal>
        <Radix.Content className="tooltip" sideOffset={6} collisionPadding={8}>
          {text} {keys && <KeyHint keys={keys} />}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  )
}

export const TooltipProvider = ({ children }: { children: ReactNode }) => <Radix.Provider delayDuration={400}>{children}</Radix.Provider>
