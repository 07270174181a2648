import { useSyncExternalStore } from "react"

const phone = typeof matchMedia === "function" ? matchMedia("(max-width: 640px)") : undefined

/** Whether the page is as narrow as a phone. */
export function useNarrow(): boolean {
  return useSyncExternalStore(
    (f) => {
      phone?.addEventListener("change", f)
      return () => phone?.removeEventListener("change", f)
    },
    () => phone?.matches ?? false,
  )
}
