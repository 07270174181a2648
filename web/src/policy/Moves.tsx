import { useLayoutEffect } from "react"
import { useAnswer } from "../hub/answer"
import { get, type Obj } from "../hub/client"
import { type Rights, where } from "../hub/rights"
import { Badge } from "../part/Mark"
import { Failure, Skeleton } from "../part/Notice"
import { t } from "../text/text"
import { at, group, kinds, type PolicyKind, path } from "./form"
import "../cluster/cluster.css"
import "./policy.css"
import { type Change, clustersOf, moves, much, type Question, without } from "./moves"

const shown = 20

/** Is told whether much moves: undefined while that is asked, and no longer true when nobody asks. */
type OnMany = (is: boolean | undefined) => void

/** What moves between which clusters. */
function Moves({ about, ask, of, onMany }: { about: string; ask: Question; of: string; onMany: OnMany }) {
  const { data, error, loading, reload } = useAnswer((signal) => moves(ask, signal), of)
  const is = error ? true : loading ? undefined : much(data)
  useLayoutEffect(() => {
    onMany(is)
    return () => onMany(false)
  }, [is, onMany])
  if (error) return <Failure error={error} retry={reload} />
  if (loading) return <Skeleton lines={2} />
  if (!data) return <p className="muted">{t("policy.movesUnknown")}</p>
  const moving = data.moves.filter((m) => m.changes?.length !== 0)
  const still = data.moves.length - moving.length
  return (
    <section className="moves" aria-label={about}>
      <p>
        {moving.length > 0 ? about : t("policy.movesNone")} {!data.whole && t("policy.movesPart")}
      </p>
      <ul>
        {moving.slice(0, shown).map((m) => (
          <li key={m.object} className="badges">
            <span className="mono">{m.object}</span>
            {m.changes?.map((c) => (
              <Badge key={c.cluster} tone={c.to === undefined ? "bad" : "plain"}>
                {text(c)}
              </Badge>
            ))}
            {m.atOnce && <span className="bad">{t("policy.movesAtOnce")}</span>}
            <span className="muted">{m.changes ? m.message : (m.message ?? t("policy.whereUnknown"))}</span>
          </li>
        ))}
        {moving.length > shown && <li className="muted">{t("why.more", { n: moving.length - shown })}</li>}
        {moving.length > 0 && still > 0 && <li className="muted">{t("policy.movesStay", { n: still })}</li>}
        {moving.length > 0 && data.following > 0 && <li className="muted">{t("policy.movesFollow", { n: data.following })}</li>}
      </ul>
    </section>
  )
}

const text = ({ cluster, from, to }: Change) =>
  from === true || to === true ? t(to ? "policy.comes" : "policy.goes", { cluster }) : `${cluster} ${from ?? 0} → ${to ?? 0}`

/** What an edit of a policy moves. */
export function PolicyMoves({ before, after, onMany }: { before: Obj; after: Obj; onMany: OnMany }) {
  const { kind, metadata } = after
  const edited = (field: string) => JSON.stringify(at(after, ["spec", field])) !== JSON.stringify(at(before, ["spec", field]))
  const placement = at(after, ["spec", "placement"])
  const has = (b: Obj) => b.spec.policyRef.kind === kind && b.spec.policyRef.name === metadata.name
  return (
    <>
      {edited("placement") && (
        <Moves
          about={t(at(after, ["spec", "activationPreference"]) === "Lazy" ? "policy.movesLazy" : "policy.moves")}
          of={`${kind} ${metadata.name} ${JSON.stringify(placement)}`}
          ask={{ namespace: metadata.namespace, has, placement: () => placement }}
          onMany={onMany}
        />
      )}
      {edited("resourceSelectors") && !kinds[kind as PolicyKind].overrides && <p className="muted">{t("policy.movesSelectors")}</p>}
    </>
  )
}

/** Where that goes which is placed in a cluster that leaves. */
export function ClusterMoves({ name, onMany }: { name: string; onMany: OnMany }) {
  const policies = new Map<string, Promise<unknown>>()
  const placement = (b: Obj, rights: Rights) => {
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
  return <Moves about={t("policy.movesFrom")} of={`leaves ${name}`} ask={{ has: (b) => clustersOf(b).includes(name), placement }} onMany={onMany} />
}
