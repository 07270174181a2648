import { useLayoutEffect } from "react"
import { useAnswer } from "../hub/answer"
import type { Obj } from "../hub/client"
import { equal } from "../hub/fields"
import { Badge } from "../part/Mark"
import { Failure, Skeleton } from "../part/Notice"
import { t } from "../text/text"
import { kinds, type PolicyKind } from "./form"
import "../cluster/cluster.css"
import "./policy.css"
import { type Change, type Move, moves, much } from "./moves"

const shown = 20

/**
 * Receives whether the user must confirm the moves: undefined while the hub is asked, false when
 * the component is removed.
 */
type OnMany = (is: boolean | undefined) => void

type Props = { about?: string; change: Change; part?: boolean; onMany: OnMany }

/**
 * The replicas and copies that a change moves between clusters. part: the change is only a part of
 * what is saved, so other objects may move, too.
 */
export function Moves({ about = t("policy.moves"), change, part, onMany }: Props) {
  const { data: found, error, loading, reload } = useAnswer((signal) => moves(change, signal), JSON.stringify(change))
  const data = found && { ...found, exact: found.exact && !part }
  const is = error ? true : loading || !data ? undefined : much(data)
  useLayoutEffect(() => {
    onMany(is)
    return () => onMany(false)
  }, [is, onMany])
  if (error) return <Failure error={error} retry={reload} />
  if (loading || !data) return <Skeleton lines={2} />
  const { items = [], moving, hidden = 0, looked } = data
  const more = moving - hidden - Math.min(items.length, shown)
  return (
    <section className="moves" aria-label={about}>
      <p>
        {moving > 0 ? about : t("policy.movesNone")} {!data.exact && t("policy.movesPart")}
      </p>
      <ul>
        {items.slice(0, shown).map((m) => (
          <Moving key={JSON.stringify(m.of)} move={m} by={change.policy?.name} />
        ))}
        {more > 0 && <li className="muted">{t("why.more", { n: more })}</li>}
        {hidden > 0 && <li className="muted">{t("policy.movesHidden", { n: hidden })}</li>}
        {moving > 0 && looked > moving && <li className="muted">{t("policy.movesStay", { n: looked - moving })}</li>}
      </ul>
    </section>
  )
}

function Moving({ move: { of, clusters = [], hidden = 0, policy, ...m }, by }: { move: Move; by?: string }) {
  return (
    <li className="badges">
      <span className="mono">{`${of.kind} ${of.namespace ? `${of.namespace}/` : ""}${of.name}`}</span>
      {clusters.map((c) => (
        <Badge key={c.name} tone={c.to ? "plain" : "bad"}>
          {(c.from ?? c.to)?.replicas === undefined
            ? t(c.to ? "policy.comes" : "policy.goes", { cluster: c.name })
            : `${c.name} ${c.from?.replicas ?? 0} → ${c.to?.replicas ?? 0}`}
        </Badge>
      ))}
      {hidden > 0 && <span>{t("object.goesToHidden", { n: hidden })}</span>}
      {m.atOnce && <span className="bad">{t("policy.movesAtOnce")}</span>}
      {m.later && <span>{t("policy.movesLater")}</span>}
      {by && policy && policy.name !== by && <span>{t("policy.movesBy", { name: policy.name })}</span>}
      {m.atOnce && <span className="muted">{m.message}</span>}
    </li>
  )
}

/**
 * The moves of an edit: of a propagation policy, including a new or deleted one, or of a
 * cluster's labels or taints. The hub computes those of either labels or taints.
 */
export function EditMoves({ before, after, onMany }: { before?: Obj; after?: Obj; onMany: OnMany }) {
  const is = after ?? before
  if (!is) return null
  const { namespace, name, labels = {} } = is.metadata
  if (is.kind === "Cluster") {
    const taints = is.spec?.taints ?? []
    const relabelled = before && !equal(before.metadata.labels ?? {}, labels)
    const tainted = before && !equal(before.spec?.taints ?? [], taints)
    const change = { cluster: { name, ...(tainted ? { taints } : { labels }) } }
    return relabelled || tainted ? <Moves change={change} part={relabelled && tainted} onMany={onMany} /> : null
  }
  if (kinds[is.kind as PolicyKind]?.overrides !== false || equal(before?.spec, after?.spec)) return null
  return <Moves change={{ policy: { namespace, name, spec: after?.spec } }} onMany={onMany} />
}
