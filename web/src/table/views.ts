/**
 * Pure except for the given storage: named views. A view is only the query string of a table's
 * URL.
 */
export type View = { name: string; search: string }

const key = "orrery.views"
type Storage = Pick<globalThis.Storage, "getItem" | "setItem">

export function views(storage: Storage): View[] {
  try {
    const kept: unknown = JSON.parse(storage.getItem(key) ?? "[]")
    return Array.isArray(kept) ? kept.filter((v): v is View => typeof v?.name === "string" && typeof v?.search === "string") : []
  } catch {
    return []
  }
}

export function keep(storage: Storage, view: View): View[] {
  const next = [...views(storage).filter((v) => v.name !== view.name), view].sort((a, b) => a.name.localeCompare(b.name))
  storage.setItem(key, JSON.stringify(next))
  return next
}

export function forget(storage: Storage, name: string): View[] {
  const next = views(storage).filter((v) => v.name !== name)
  storage.setItem(key, JSON.stringify(next))
  return next
}
