import { store } from "../part/store"

export const themes = ["system", "light", "dark"] as const
export type Theme = (typeof themes)[number]

const key = "orrery.theme"

function kept(): Theme {
  const text = localStorage.getItem(key)
  return text === "light" || text === "dark" ? text : "system"
}

const chosen = store<Theme>("system")
export const useTheme = chosen.use

export function setTheme(next: Theme): void {
  if (next === "system") localStorage.removeItem(key)
  else localStorage.setItem(key, next)
  showTheme()
}

export function showTheme(): void {
  const now = kept()
  chosen.set(now)
  if (now === "system") delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = now
}
