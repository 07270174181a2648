import { useState } from "react"

// Unsaved edits are kept while the user visits another page or signs in again. They are only in
// the memory of the tab.

const drafts = new Map<string, unknown>()
const ask = (e: BeforeUnloadEvent) => e.preventDefault()

function keep(key: string, draft: unknown): void {
  if (draft === undefined) drafts.delete(key)
  else drafts.set(key, draft)
  if (drafts.size) addEventListener("beforeunload", ask)
  else removeEventListener("beforeunload", ask)
}

/** The draft with a key; like useState. */
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
