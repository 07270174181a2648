import type { ComponentType } from "react"
import type { Obj } from "../hub/client"
import { groupOf } from "../hub/link"
import { later } from "../part/later"

/** A page of a kind's own: it stands first in the overview of each object of the kind. */
export type OwnPage = ComponentType<{ object: Obj; cluster: string }>

const pages: Record<string, OwnPage> = {
  "Website.apps.orrery.dev": later(() => import("./Website"), 3),
}

/** The page of an object's kind, if it has one of its own. */
export function ownPage(object: Obj): OwnPage | undefined {
  const group = groupOf(object.apiVersion)
  return pages[group ? `${object.kind}.${group}` : object.kind]
}
