import { useEffect } from "react"
import { store } from "../part/store"

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
  /** Whether the page has something to do it with; without the function, it has. */
  possible?: () => boolean
  /** Shown under this heading in the list of keys. */
  section?: string
}

let groups: Action[][] = []
const all = store<Action[]>([])

function set(next: Action[][]): void {
  groups = next
  // What was registered last has precedence: a screen's key before the layout's.
  all.set([...groups].reverse().flat())
}

/** What works everywhere is asked last, though it is registered after the first screen. */
export function register(actions: Action[], everywhere = false): () => void {
  set(everywhere ? [actions, ...groups] : [...groups, actions])
  return () => set(groups.filter((g) => g !== actions))
}

export const actions = all.now
export const useAllActions = all.use

/** Registers actions while the component is shown. They are registered anew when one of the dependencies changes. */
export function useActions(make: () => Action[], dependencies: unknown[], everywhere = false): void {
  // biome-ignore lint/correctness/useExhaustiveDependencies: the caller names them.
  useEffect(() => register(make(), everywhere), dependencies)
}
