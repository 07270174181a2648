import { useAnswer } from "./answer"
import { fleet, get } from "./client"

// What the hub's roles let the user do. It is requested first, so that the page sends no request
// that would be refused.

export interface Rights {
  user: string
  namespaces?: string[]
  types: { group: string; resource: string; verbs: { verb: string; everywhere?: boolean; namespaces?: string[] }[] }[]
}

const lifeMs = 60_000
let asked: { at: number; answer: Promise<Rights> } | undefined

export function askRights(): Promise<Rights> {
  if (!asked || Date.now() - asked.at > lifeMs) {
    const answer = get<Rights>(`${fleet}/access`)
    asked = { at: Date.now(), answer }
    answer.catch(() => (asked = undefined))
  }
  return asked.answer
}

/**
 * The user's rights; undefined until known. It throws if they cannot be read, so that the page
 * shows only the error. Parts of a page use askRights instead.
 */
export function useRights(): Rights | undefined {
  const { data, error } = useAnswer(askRights, "rights")
  if (error && !data) throw error
  return data
}

/** Where an action is allowed: everywhere, in some namespaces, or nowhere. */
export interface Where {
  everywhere: boolean
  namespaces: string[]
}

export function where(rights: Rights | undefined, verb: string, group: string, resource: string): Where {
  const of = rights?.types.find((t) => t.group === group && t.resource === resource)?.verbs.find((v) => v.verb === verb)
  return { everywhere: of?.everywhere ?? false, namespaces: of?.namespaces ?? [] }
}

export function somewhere(w: Where): boolean {
  return w.everywhere || w.namespaces.length > 0
}

/** The namespaces to request one by one; [""] requests all at once, [] nothing. */
export function scopes(w: Where): string[] {
  return w.everywhere ? [""] : w.namespaces
}
