import { useSyncExternalStore } from "react"

/** A value outside of components. Components that use it are rendered again when it changes. */
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
