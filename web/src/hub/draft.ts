import { useState } from "react"

// What somebody wrote and did not save is there when they come back to it: from another page, or after signing in again. It is in the memory of the tab, and
// nowhere else.

const drafts = new Map<string, unknown>()
const ask = (e: BeforeUnloadEvent) => e.preventDefault()

function keep(key: string, draft: unknown): void {
  if (draft === undefined) drafts.delete(key)
  else drafts.set(key, draft)
  if (drafts.size) addEventListener("beforeunload", ask)
  else removeEventListener("beforeunload", ask)
}

/** The draft of a name, as useState would have it. */
export function useDraft<T>(key: string): [T | undefined, (next: T | undefined) => void] {
  const [draft, setDraft] = useState(drafts.get(key) as T | undefined)
  const set = (next: T | undefined) => {
    keep(key, next)
    setDraft(next)
  }
  return [draft, set]
}

export function forgetDrafts(): void {
  for (const key of drafts.keys()) keep(key, undefined)
}
