import { useEffect, useRef, useState } from "react"
import { Link } from "wouter"
import { useCan } from "../hub/access"
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
import { Latest, type Told } from "./latest"

const againMs = 10_000

/** Which clusters the scheduler would take now, by what the form says: asked a moment after the last change, and now and then, as clusters change, too. */
export function Preview({ kind, object }: { kind: PolicyKind; object: Value }) {
  const namespace = kinds[kind].namespaced ? text(object, ["metadata", "namespace"]) : ""
  const may = useCan({ verb: "create", group, resource: kinds[kind].plural, namespace: namespace || undefined })
  const [told, setTold] = useState<Told<Review>>({ stale: false })
  const latest = useRef<Latest<Review["spec"], Review>>(undefined)
  const placement = at(object, ["spec", "placement"]) ?? {}
  const key = JSON.stringify([placement, namespace, may])
  useEffect(() => {
    const asks = new Latest<Review["spec"], Review>((spec, signal) => {
      return post<Review>(`${fleet}/placementreviews`, { apiVersion: "fleet.orrery.dev/v1alpha1", kind: "PlacementReview", spec }, undefined, signal)
    }, setTold)
    latest.current = asks
    const timer = setInterval(() => document.visibilityState === "visible" && asks.again(), againMs)
    return () => {
      clearInterval(timer)
      asks.stop()
    }
  }, [])
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key stands for the question.
  useEffect(() => {
    if (may) latest.current?.put({ placement, ...(namespace ? { namespace } : {}) })
  }, [key])
  if (may === false) return null
  const status = told.answer?.status
  const all = groups(status?.clusters ?? [])
  const chosen = (status?.clusters ?? []).filter((c) => c.placed).length
  return (
    <Section title={t("policy.preview")} actions={told.stale && status ? <Mark tone="unknown">{t("policy.asking")}</Mark> : undefined}>
      {told.error !== undefined && !told.stale && <Failure error={told.error as Error} />}
      {!status && told.error === undefined && <Skeleton lines={4} />}
      {status && (
        <div className={told.stale ? "stale" : ""}>
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
