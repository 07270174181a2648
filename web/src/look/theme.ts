export type Theme = "system" | "light" | "dark"

const key = "orrery.theme"

export function theme(): Theme {
  const kept = localStorage.getItem(key)
  return kept === "light" || kept === "dark" ? kept : "system"
}

export function setTheme(next: Theme): void {
  if (next === "system") localStorage.removeItem(key)
  else localStorage.setItem(key, next)
  showTheme()
}

export function showTheme(): void {
  const now = theme()
  if (now === "system") delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = now
}
