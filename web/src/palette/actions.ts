import { useEffect } from "react"
import { store } from "../part/store"

/**
 * The actions that are possible now. Each screen registers its own while it is shown. The palette
 * lists them, and `?` shows those with keys.
 * Keys are those of k9s: one character, or two with a blank between, such as "g t".
 */
export type Action = {
  id: string
  title: string
  keys?: string
  /** Other words that find the action. */
  words?: string
  run: () => void
  /** Only a key, for example to move: not listed as a command. */
  quiet?: boolean
  /** Whether the action has an object now; without the function it has. */
  possible?: () => boolean
  /** The heading in the list of keys. */
  section?: string
}

let groups: Action[][] = []
const all = store<Action[]>([])

function set(next: Action[][]): void {
  groups = next
  // Later groups have precedence: a screen's key before the layout's.
  all.set([...groups].reverse().flat())
}

/**
 * everywhere marks actions of all screens. They have the lowest precedence, although they are
 * registered after those of the first screen.
 */
export function register(actions: Action[], everywhere = false): () => void {
  set(everywhere ? [actions, ...groups] : [...groups, actions])
  return () => set(groups.filter((g) => g !== actions))
}

export const actions = all.now
export const useAllActions = all.use

/** Registers actions while the component is shown, and again when a dependency changes. */
export function useActions(make: () => Action[], dependencies: unknown[], everywhere = false): void {
  // biome-ignore lint/correctness/useExhaustiveDependencies: the caller names them.
  useEffect(() => register(make(), everywhere), dependencies)
}
