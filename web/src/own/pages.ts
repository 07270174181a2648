import type { ComponentType } from "react"
import type { Obj } from "../hub/client"
import { groupOf } from "../hub/link"
import { later } from "../part/later"

/** The special page of a kind, shown first in the overview of its objects. */
export type OwnPage = ComponentType<{ object: Obj; cluster: string }>

const binding = later(() => import("./Binding"), 0)
const pages: Record<string, OwnPage> = {
  "Website.apps.orrery.dev": later(() => import("./Website"), 3),
  "ResourceBinding.work.orrery.dev": binding,
  "ClusterResourceBinding.work.orrery.dev": binding,
}

/** The special page for an object's kind, if there is one. */
export function ownPage(object: Obj): OwnPage | undefined {
  const group = groupOf(object.apiVersion)
  return pages[group ? `${object.kind}.${group}` : object.kind]
}
