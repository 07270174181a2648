import { useEffect } from "react"
import { useAnswer } from "../hub/answer"
import { get, type Obj } from "../hub/client"
import { useRights, where } from "../hub/rights"
import { Badge } from "../part/Mark"
import { Failure, Skeleton } from "../part/Notice"
import { many } from "../table/selection"
import { t } from "../text/text"
import { at, group, kinds, type PolicyKind, path } from "./form"
import "../cluster/cluster.css"
import "./policy.css"
import { type Change, isIn, leaving, type Move, moves, type Question, without } from "./moves"

const shown = 20

/** What moves between which clusters; onMany is told whether that is much. */
function Moves({ about, ask, of, onMany }: { about: string; ask: Question; of: string; onMany?: (is: boolean) => void }) {
  const rights = useRights()
  const { data, error, loading, reload } = useAnswer(rights && ((signal) => moves(rights, ask, signal)), of)
  const much = data !== undefined && leaving(data) > many
  useEffect(() => onMany?.(much), [much, onMany])
  if (error) return <Failure error={error} retry={reload} />
  if (loading) return <Skeleton lines={2} />
  if (!data) return <p className="muted">{t("policy.movesUnknown")}</p>
  const still = data.filter((m) => m.changes?.length === 0).length
  const moving = data.filter((m) => m.changes?.length !== 0)
  return (
    <section className="moves" aria-label={about}>
      <p>{moving.length > 0 ? about : t("policy.movesNone")}</p>
      <ul>
        {moving.slice(0, shown).map((m) => (
          <li key={m.object}>
            <span className="mono">{m.object}</span> <Changes of={m} />
          </li>
        ))}
        {moving.length > shown && <li className="muted">{t("why.more", { n: moving.length - shown })}</li>}
        {moving.length > 0 && still > 0 && <li className="muted">{t("policy.movesStay", { n: still })}</li>}
      </ul>
    </section>
  )
}

function Changes({ of: { changes, message } }: { of: Move }) {
  const text = ({ cluster, from, to }: Change) =>
    from === true || to === true ? t(to ? "policy.comes" : "policy.goes", { cluster }) : `${cluster} ${from ?? 0} → ${to ?? 0}`
  return (
    <span className="badges">
      {changes?.map((c) => (
        <Badge key={c.cluster} tone={c.to === undefined ? "bad" : "plain"}>
          {text(c)}
        </Badge>
      ))}
      {!changes && <span className="muted">{t("policy.whereUnknown")}</span>}
      {message && <span className="muted">{message}</span>}
    </span>
  )
}

/** What an edit of a policy moves. */
export function PolicyMoves({ before, after, onMany }: { before: Obj; after: Obj; onMany: (is: boolean) => void }) {
  const placement = at(after, ["spec", "placement"])
  const key = JSON.stringify(placement)
  if (key === JSON.stringify(at(before, ["spec", "placement"]))) return null
  const { kind, metadata } = after
  const has = (b: Obj) => b.spec.policyRef.kind === kind && b.spec.policyRef.name === metadata.name
  return (
    <Moves
      about={t("policy.moves")}
      of={`${kind} ${metadata.name} ${key}`}
      ask={{ namespace: metadata.namespace, has, placement: () => placement }}
      onMany={onMany}
    />
  )
}

/** Where that goes which is placed in a cluster that leaves. */
export function ClusterMoves({ name }: { name: string }) {
  const rights = useRights()
  const policies = new Map<string, Promise<unknown>>()
  const placement = (b: Obj) => {
    const kind = b.spec.policyRef.kind as PolicyKind
    const may = where(rights, "list", group, kinds[kind].plural)
    if (!may.everywhere && !may.namespaces.includes(b.metadata.namespace ?? "")) return undefined
    const at = path(kind, b.metadata.namespace, b.spec.policyRef.name)
    // One that is gone places nothing anew.
    const known =
      policies.get(at) ??
      get(at).then(
        (p) => without(p.spec.placement, name),
        () => undefined,
      )
    policies.set(at, known)
    return known
  }
  return <Moves about={t("policy.movesFrom")} of={`leaves ${name}`} ask={{ has: (b) => isIn(b, name), placement }} />
}
