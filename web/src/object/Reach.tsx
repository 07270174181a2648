import { Link } from "wouter"
import { useGet } from "../hub/answer"
import { fleet } from "../hub/client"
import { ofRef, type Ref, whyLink } from "../hub/link"
import { Badge } from "../part/Mark"
import type { Explanation } from "../placement/explained"
import { t } from "../text/text"

/** The clusters that have, or will have, a copy of an object of the hub. */
export const copiesOf = (e: Explanation): string[] => (e.clusters ?? []).filter((c) => c.placed || c.attached || c.leaves).map((c) => c.name)

/**
 * The clusters of an object: its own, or those in which the hub places it. undefined until known.
 */
export function useReach(of: Ref): { clusters: string[]; hidden: number; state?: Explanation["state"]; unknown?: boolean } | undefined {
  const { data, loading } = useGet<Explanation>(of.cluster ? undefined : `${fleet}/placements`, { of: ofRef(of) })
  if (of.cluster) return { clusters: [of.cluster], hidden: 0 }
  if (!data) return loading ? undefined : { clusters: [], hidden: 0, unknown: true }
  return { clusters: copiesOf(data), hidden: data.hidden ?? 0, state: data.state }
}

/** Shows which clusters a change reaches. */
export function Reach({ of }: { of: Ref }) {
  const reach = useReach(of)
  if (!reach || (!of.cluster && (!reach.state || reach.state === "Reserved"))) return null
  return (
    <p className="reach">
      {t(reach.clusters.length > 0 ? "object.goesTo" : of.group === "policy.orrery.dev" ? "object.goesAsSelected" : "object.goesNowhere")}{" "}
      {reach.clusters.map((name) => (
        <Badge key={name}>{name}</Badge>
      ))}{" "}
      {reach.hidden > 0 && t("object.goesToHidden", { n: reach.hidden })}{" "}
      {!of.cluster && (
        <Link className="link" href={whyLink(of)}>
          {t("object.why")}
        </Link>
      )}
    </p>
  )
}
