import { useSyncExternalStore } from "react"

/** A value outside of components, which those that use it follow. */
export function store<T>(first: T) {
  let value = first
  const listeners = new Set<() => void>()
  const subscribe = (f: () => void) => {
    listeners.add(f)
    return () => listeners.delete(f)
  }
  const now = () => value
  const set = (next: T) => {
    value = next
    for (const f of listeners) f()
  }
  return { now, set, use: () => useSyncExternalStore(subscribe, now) }
}
