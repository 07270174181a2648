import { useEffect, useSyncExternalStore } from "react"

/**
 * What can be done now. Each screen registers its actions while it is shown; the palette lists them, and `?` shows those with keys.
 * Keys are those of k9s: one character, or two with a blank between, such as "g t".
 */
export type Action = {
  id: string
  title: string
  keys?: string
  /** Other words by which it is found. */
  words?: string
  run: () => void
  /** Only a key, such as one that moves: not listed as a command. */
  quiet?: boolean
  /** Shown under this heading in the list of keys. */
  section?: string
}

let groups: Action[][] = []
let all: Action[] = []
const listeners = new Set<() => void>()

function set(next: Action[][]): void {
  groups = next
  // What was registered last has precedence: a screen's key before the layout's.
  all = [...groups].reverse().flat()
  for (const f of listeners) f()
}

export function register(actions: Action[]): () => void {
  set([...groups, actions])
  return () => set(groups.filter((g) => g !== actions))
}

export const actions = () => all

/** Registers actions while the component is shown. They are registered anew when one of the dependencies changes. */
export function useActions(make: () => Action[], dependencies: unknown[]): void {
  // biome-ignore lint/correctness/useExhaustiveDependencies: the caller names them.
  useEffect(() => register(make()), dependencies)
}

export function useAllActions(): Action[] {
  return useSyncExternalStore(
    (f) => {
      listeners.add(f)
      return () => listeners.delete(f)
    },
    () => all,
  )
}
