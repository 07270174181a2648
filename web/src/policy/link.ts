import { encode } from "../hub/client"

/** The page of a policy; without a name, the page for a new one of the kind. */
export function policyLink(p: { kind: string; namespace?: string; name?: string }): string {
  return `/policies?${encode({ kind: p.kind, namespace: p.namespace, name: p.name })}`
}
