import { useSyncExternalStore } from "react"
import { time } from "../text/text"
import { age } from "./time"

/** One timer for all ages: it runs each second while any is shown. */
const listeners = new Set<() => void>()
let now = Date.now()
let timer = 0

function subscribe(f: () => void): () => void {
  listeners.add(f)
  if (!timer) {
    now = Date.now()
    timer = window.setInterval(() => {
      now = Date.now()
      for (const g of listeners) g()
    }, 1000)
  }
  return () => {
    listeners.delete(f)
    if (listeners.size) return
    clearInterval(timer)
    timer = 0
  }
}

/** The age as text. The component is rendered again only when the text changes. */
export function useAge(since: string | number | undefined): string {
  const from = since === undefined || since === "" ? Number.NaN : new Date(since).getTime()
  return useSyncExternalStore(subscribe, () => (Number.isNaN(from) ? "" : age((timer ? now : Date.now()) - from)))
}

export function Age({ since }: { since: string | number | undefined }) {
  const text = useAge(since)
  return text ? (
    <time className="age" dateTime={new Date(since!).toISOString()} title={time(since!)}>
      {text}
    </time>
  ) : null
}
