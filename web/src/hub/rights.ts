import { useAnswer } from "./answer"
import { fleet, get } from "./client"

// What the user may do, by the hub's roles: asked before anything is asked for that may be refused.

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

/** undefined until they are known. A page that cannot know them shows why, and nothing else: what stands in a page asks askRights. */
export function useRights(): Rights | undefined {
  const { data, error } = useAnswer(askRights, "rights")
  if (error && !data) throw error
  return data
}

/** Where something may be done: everywhere, in some namespaces, or nowhere. */
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

/** The namespaces to ask one by one, or "" for all at once; none: nothing may be asked for. */
export function scopes(w: Where): string[] {
  return w.everywhere ? [""] : w.namespaces
}
