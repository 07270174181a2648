import { encode } from "../hub/client"

/** The page of a policy; of a kind without a name, of one that is to be made. */
export function policyLink(p: { kind: string; namespace?: string; name?: string }): string {
  return `/policies?${encode({ kind: p.kind, namespace: p.namespace, name: p.name })}`
}
