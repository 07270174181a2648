import { useRef } from "react"
import { Link } from "wouter"
import { useCan } from "../hub/access"
import { useAnswer, useSettled } from "../hub/answer"
import { fleet, post } from "../hub/client"
import { clusterLink } from "../hub/link"
import { Badge, Mark } from "../part/Mark"
import { Failure, Notice, Skeleton } from "../part/Notice"
import { Section } from "../part/Page"
import type { Review } from "../placement/explained"
import { t } from "../text/text"
import { VerdictLine } from "../why/page"
import { groups } from "../why/why"
import { at, group, kinds, type PolicyKind, text, type Value } from "./form"

const [pauseMs, againMs] = [300, 10_000]

/**
 * The clusters that the scheduler would choose now for the form. It is asked after a pause in the
 * changes, and repeatedly because clusters change.
 */
export function Preview({ kind, object }: { kind: PolicyKind; object: Value }) {
  const namespace = kinds[kind].namespaced ? text(object, ["metadata", "namespace"]) : ""
  const may = useCan({ verb: "create", group, resource: kinds[kind].plural, namespace: namespace || undefined })
  const placement = at(object, ["spec", "placement"]) ?? {}
  const spec = JSON.stringify({ placement, ...(namespace ? { namespace } : {}) })
  const asked = useSettled(spec, pauseMs)
  const ask = (signal: AbortSignal) => {
    const review = { apiVersion: "fleet.orrery.dev/v1alpha1", kind: "PlacementReview", spec: JSON.parse(asked) }
    return post<Review>(`${fleet}/placementreviews`, review, undefined, signal)
  }
  const { data, error } = useAnswer(may && spec === asked ? ask : undefined, asked, againMs)
  // Until there is an answer, the last one stays, marked as outdated.
  const last = useRef<Review>(undefined)
  if (data) last.current = data
  if (may === false) return null
  const status = last.current?.status
  const stale = spec !== asked || !data
  const all = groups(status?.clusters ?? [])
  const chosen = (status?.clusters ?? []).filter((c) => c.placed).length
  return (
    <Section title={t("policy.preview")} actions={stale && status ? <Mark tone="unknown">{t("policy.asking")}</Mark> : undefined}>
      {error && spec === asked && <Failure error={error} />}
      {!status && !error && <Skeleton lines={4} />}
      {status && (
        <div className={stale ? "stale" : ""}>
          <p className="preview-sum" aria-live="polite">
            <Mark tone={status.state === "Placed" ? "good" : status.state === "Nowhere" ? "bad" : "unknown"}>
              {t("policy.chosen", { n: chosen, all: status.clusters?.length ?? 0 })}
            </Mark>
          </p>
          {status.state !== "Placed" && status.message && <Notice tone="warn">{status.message}</Notice>}
          {all.map((g) => (
            <ul key={g.stand} className="preview">
              {g.clusters.slice(0, 50).map((c) => (
                <li key={c.name} data-placed={c.placed}>
                  <span className="row">
                    <Mark tone={c.placed ? "good" : "plain"}>
                      <Link href={clusterLink(c.name)}>{c.name}</Link>
                    </Mark>
                    {c.replicas !== undefined && <Badge>{t("why.replicas", { n: c.replicas })}</Badge>}
                  </span>
                  {!c.placed && c.verdicts?.[0] && <VerdictLine verdict={c.verdicts[0]} />}
                </li>
              ))}
              {g.clusters.length > 50 && <li className="muted">{t("why.more", { n: g.clusters.length - 50 })}</li>}
            </ul>
          ))}
        </div>
      )}
    </Section>
  )
}
