import { Link, useSearchParams } from "wouter"
import { useGet } from "../hub/answer"
import { fleet } from "../hub/client"
import { clusterLink, groupOf, objectLink, parseOf, placementsLink, type Ref } from "../hub/link"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { Badge, Mark, type Tone } from "../part/Mark"
import { Empty, Notice } from "../part/Notice"
import { Facts, Page, Section, SmallTable } from "../part/Page"
import type { ExplainedCluster, ExplainedObject, ExplainedPolicy, Explanation, Verdict } from "../placement/explained"
import { policyLink } from "../policy/link"
import { t, time } from "../text/text"
import { groups, held, known, outdated, type Stand, texts } from "./why"
import "../cluster/cluster.css"
import "./why.css"

export default function WhyPage() {
  const [params] = useSearchParams()
  const of = params.get("of") ?? ""
  const ref = parseOf(of)
  if (!ref) {
    return (
      <Page title={t("why.title")}>
        <Empty title={of ? t("placement.wrong", { of }) : t("why.which")}>{of ? t("placement.wrongMore") : t("why.whichMore")}</Empty>
      </Page>
    )
  }
  return <Why key={of} of={of} subject={ref} />
}

const stateTones: Record<Explanation["state"], Tone> = {
  Placed: "good",
  Waiting: "warn",
  Nowhere: "bad",
  Unclaimed: "plain",
  Reserved: "plain",
  Unknown: "unknown",
}

function Why({ of, subject }: { of: string; subject: Ref }) {
  const answer = useGet<Explanation>(`${fleet}/placements`, { of }, 5_000)
  return (
    <Page
      title={t("why.titleOf", { name: subject.name })}
      about={`${subject.kind}${subject.namespace ? ` · ${subject.namespace}` : ""}`}
      links={[
        [objectLink(subject), t("placement.template")],
        [placementsLink(subject), t("why.matrix")],
      ]}
    >
      <Answered answer={answer} lines={8}>
        {(e) => <Explained e={e} />}
      </Answered>
    </Page>
  )
}

function Explained({ e }: { e: Explanation }) {
  const old = outdated(e)
  const { message, waits, outcome } = texts(e)
  return (
    <>
      <div className="why-state">
        <Mark tone={stateTones[e.state]}>{t(`why.${e.state}`)}</Mark>
        <p className="selectable">{message}</p>
      </div>
      {old && <Notice tone="unknown">{t(`why.${old}Old`)}</Notice>}
      {waits.map((w) => (
        <Notice key={`${w.for} ${w.message}`} tone={w.for === "Cluster" ? "unknown" : "warn"} title={t("why.waits")}>
          {w.message}
          {w.clusters && <span className="muted"> ({w.clusters.join(", ")})</span>}
        </Notice>
      ))}
      {held(e).map((h) => (
        <Notice key={h.cluster} tone="warn" title={t("why.evictionWaits", { cluster: h.cluster, taint: h.taint })}>
          <VerdictLine verdict={h} />
        </Notice>
      ))}
      <Section title={t("why.decision")}>
        {e.decision ? (
          <Facts
            facts={[
              [
                t("why.decided"),
                <span key="time" title={time(e.decision.time)}>
                  <Age since={e.decision.time} /> · {time(e.decision.time)}
                </span>,
              ],
              [t("why.outcome"), outcome],
              [t("why.generation"), t("why.generationOf", { decided: e.decision.generation ?? 0, now: e.of.generation ?? 0 })],
              ...(e.decision.policyGeneration ? [[t("why.policyGeneration"), e.decision.policyGeneration] as [string, number]] : []),
              ...(e.decision.replicas !== undefined
                ? [[t("policy.replicas"), t(e.decision.divided ? "why.divided" : "why.duplicated", { n: e.decision.replicas })] as [string, string]]
                : []),
            ]}
          />
        ) : (
          <p className="muted">{e.state === "Unclaimed" || e.state === "Reserved" ? t("why.noDecision") : t("why.lostDecision")}</p>
        )}
      </Section>
      <Policies e={e} />
      {e.clusters && e.clusters.length > 0 && (
        <Section title={t("object.clusters")}>
          {groups(e.clusters).map((g) => (
            <Clusters key={g.stand} stand={g.stand} clusters={g.clusters} />
          ))}
        </Section>
      )}
      {e.hidden ? <p className="muted">{t("why.hidden", { n: e.hidden })}</p> : null}
      <Follow title={t("why.follow")} objects={e.follow} more={e.followMore} />
      <Follow title={t("why.follows")} objects={e.follows} />
    </>
  )
}

function Policies({ e }: { e: Explanation }) {
  const row = (p: ExplainedPolicy, role: string) => ({
    key: `${role} ${p.kind} ${p.namespace} ${p.name}`,
    cells: [
      role,
      <Link key="name" className="link" href={policyLink(p)}>
        {p.name}
      </Link>,
      p.kind,
      p.reason ?? (p.clusters ? p.clusters.join(", ") : ""),
    ],
  })
  const rows = [
    ...(e.policy ? [row(e.policy, t("why.claims"))] : []),
    ...(e.placedBy ? [row(e.placedBy, t("why.placedBy"))] : []),
    ...(e.lost ?? []).map((p) => row(p, t("why.lost"))),
    ...(e.near ?? []).map((p) => row(p, t("why.near"))),
    ...(e.overrides ?? []).map((p) => row(p, t("why.overrides"))),
  ]
  return (
    <Section title={t("policy.title")}>
      {rows.length === 0 ? (
        <p className="muted">{t("why.noPolicy")}</p>
      ) : (
        <SmallTable label={t("policy.title")} head={[t("why.role"), t("common.name"), t("common.kind"), t("why.because")]} rows={rows} />
      )}
    </Section>
  )
}

const standTones: Record<Stand, Tone> = { placed: "good", stays: "warn", leaving: "warn", out: "plain", unknown: "unknown" }

/** With more clusters than this outside of the affinity, their list is collapsed. */
const folded = 12

function Clusters({ stand, clusters }: { stand: Stand; clusters: ExplainedCluster[] }) {
  const list = (
    <ul className="why-list">
      {clusters.map((c) => (
        <li key={c.name}>
          <span className="row">
            <Link className="why-name" href={clusterLink(c.name)}>
              {c.name}
            </Link>
            {c.replicas !== undefined && <Badge>{t("why.replicas", { n: c.replicas })}</Badge>}
            {c.leaving !== undefined && <Badge tone="warn">{t("why.leaving", { n: c.leaving })}</Badge>}
            {c.attached && <Badge>{t("why.attached")}</Badge>}
          </span>
          {(c.verdicts ?? []).map((v) => (
            <VerdictLine key={v.reason} verdict={v} />
          ))}
          {c.result && !c.result.applied && (
            <p className="bad selectable">
              {t("why.notApplied")} {c.result.message ?? c.result.reason}
            </p>
          )}
        </li>
      ))}
    </ul>
  )
  const head = (
    <>
      <Mark tone={standTones[stand]}>{t(stand === "leaving" ? "why.leavingStand" : `why.${stand}`)}</Mark>{" "}
      <span className="muted number">{clusters.length}</span>
    </>
  )
  if (clusters.length > folded && stand === "out") {
    return (
      <details className="why-group">
        <summary>{head}</summary>
        {list}
      </details>
    )
  }
  return (
    <div className="why-group">
      <h3>{head}</h3>
      {list}
    </div>
  )
}

/** A verdict in words, with the scheduler's message for the cluster. */
export function VerdictLine({ verdict }: { verdict: Verdict }) {
  return (
    <p className="why-verdict">
      {known(verdict.reason) ? t(`why.${verdict.reason}`) : verdict.reason}
      {verdict.message && <span className="muted selectable"> {verdict.message}</span>}
    </p>
  )
}

function Follow({ title, objects, more }: { title: string; objects?: ExplainedObject[]; more?: number }) {
  if (!objects?.length) return null
  return (
    <Section title={title}>
      <ul className="badges">
        {objects.map((o) => {
          const ref = { cluster: "", kind: o.kind, group: groupOf(o.apiVersion), namespace: o.namespace ?? "", name: o.name }
          return (
            <li key={`${o.kind}/${o.name}`}>
              <Link className="link" href={objectLink(ref)}>
                {o.kind} {o.name}
              </Link>
            </li>
          )
        })}
        {more ? <li className="muted">{t("why.more", { n: more })}</li> : null}
      </ul>
    </Section>
  )
}
