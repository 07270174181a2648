/** Pure: the meaning of key presses. */
import type { Action } from "./actions"

export type Press = { key: string; ctrlKey: boolean; metaKey: boolean; altKey: boolean }

/** The name of a key press as in actions: "j", "G", "Enter", "ctrl+d". */
export function nameOf(p: Press): string {
  return p.ctrlKey || p.metaKey ? `ctrl+${p.key.toLowerCase()}` : p.key
}

export type Meaning = { action?: Action; pending: string }

/**
 * The action of a key, given the key pressed just before. pending is set if the key may be the
 * first of two.
 */
export function meaning(actions: Action[], before: string, name: string): Meaning {
  const both = before ? `${before} ${name}` : name
  const action = actions.find((a) => a.keys === both) ?? (before ? undefined : actions.find((a) => a.keys === name))
  if (action) return { action, pending: "" }
  if (actions.some((a) => a.keys?.startsWith(`${name} `))) return { pending: name }
  return { pending: "" }
}
