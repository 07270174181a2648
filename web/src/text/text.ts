import { store } from "../part/store"
import en from "./en"

export type Texts = typeof en
export type Key = { [F in keyof Texts]: `${F & string}.${keyof Texts[F] & string}` }[keyof Texts]
export type Language = "en" | "zh"
export const languages: { value: Language; label: string }[] = [
  { value: "en", label: "English" },
  { value: "zh", label: "简体中文" },
]

const stored = "orrery.language"
const language = store<Language>("en")
let texts: Record<string, Record<string, string>> = en

/**
 * t returns a text in the user's language. {n} is replaced by a parameter, {n|row|rows} by the
 * form for its number.
 */
export function t(key: Key, params?: Record<string, string | number>): string {
  const dot = key.indexOf(".")
  return fill(texts[key.slice(0, dot)]?.[key.slice(dot + 1)] ?? key, params)
}

export function fill(text: string, params: Record<string, string | number> = {}): string {
  return text.replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, (_, name: string, one?: string, other?: string) => {
    const value = params[name] ?? ""
    const shown = typeof value === "number" ? number(value) : value
    return other === undefined ? shown : `${shown} ${Number(value) === 1 ? one : other}`
  })
}

export function number(value: number): string {
  return value.toLocaleString(locale())
}

export function locale(): string {
  return language.now() === "zh" ? "zh-CN" : "en-GB"
}

export function time(moment: string | number | Date): string {
  const date = new Date(moment)
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString(locale(), { dateStyle: "medium", timeStyle: "medium" })
}

export async function setLanguage(next: Language): Promise<void> {
  texts = next === "zh" ? (await import("./zh")).default : en
  localStorage.setItem(stored, next)
  document.documentElement.lang = next === "zh" ? "zh-CN" : "en"
  language.set(next)
}

export async function startLanguage(): Promise<void> {
  const kept = localStorage.getItem(stored)
  const wanted = kept ?? navigator.language
  // Without its texts the page is in English.
  if (wanted.startsWith("zh")) await setLanguage("zh").catch(() => {})
}

export const useLanguage = language.use
