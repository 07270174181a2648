import { useState } from "react"
import { Link, useSearchParams } from "wouter"
import { useGet } from "../hub/answer"
import { fleet } from "../hub/client"
import { freshnessIn } from "../hub/freshness"
import { clusterLink, objectLink, parseOf, type Ref, whyLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { Button } from "../part/Button"
import { Dialog } from "../part/Dialog"
import { Diff } from "../part/Diff"
import { FieldDiff } from "../part/FieldDiff"
import { Badge, Mark } from "../part/Mark"
import { Empty, Notice } from "../part/Notice"
import { Page } from "../part/Page"
import { policyLink } from "../policy/link"
import { t } from "../text/text"
import { Bindings } from "./Bindings"
import type { Work, WorkList } from "./explained"
import { type MatrixRow, matrix, shortImage, sum } from "./matrix"
import "../cluster/cluster.css"
import "./placement.css"

export default function PlacementPage() {
  const [params] = useSearchParams()
  const of = params.get("of") ?? ""
  const ref = parseOf(of)
  if (!of) return <Bindings />
  if (!ref) return <Page title={t("placement.title")}>{<Empty title={t("placement.wrong", { of })}>{t("placement.wrongMore")}</Empty>}</Page>
  return <Matrix key={of} of={of} subject={ref} />
}

function Matrix({ of, subject }: { of: string; subject: Ref }) {
  const works = useGet<WorkList>(`${fleet}/works`, { of }, 3_000)
  const [shown, setShown] = useState<string>()
  const rows = matrix(works.data?.items ?? [])
  return (
    <Page
      title={subject.name}
      about={`${subject.kind}${subject.namespace ? ` · ${subject.namespace}` : ""}`}
      links={[
        [objectLink(subject), t("placement.template")],
        [whyLink(subject), t("placement.why")],
      ]}
    >
      <Answered answer={works} />
      {works.data && <Summary rows={rows} />}
      {works.data && rows.length === 0 && (
        <Empty title={t("placement.none")}>
          {works.data.message}{" "}
          <Link className="link" href={whyLink(subject)}>
            {t("placement.why")}
          </Link>
        </Empty>
      )}
      {rows.length > 0 && <Grid rows={rows} subject={subject} onDiff={setShown} />}
      {works.data?.hidden ? <p className="muted">{t("placement.hidden", { n: works.data.hidden })}</p> : null}
      {shown && <CellDiff of={of} cluster={shown} onClose={() => setShown(undefined)} />}
    </Page>
  )
}

function Summary({ rows }: { rows: MatrixRow[] }) {
  const s = sum(rows)
  if (s.clusters === 0) return null
  return (
    <p className="matrix-sum">
      <span>{t("placement.healthy", { healthy: s.healthy, clusters: s.clusters })}</span>
      {s.counted && <span>{t("placement.readyOf", { ready: s.ready, wanted: s.wanted })}</span>}
      {s.unknown > 0 && <Mark tone="unknown">{t("placement.unknownIn", { n: s.unknown })}</Mark>}
      {s.drifted > 0 && <Mark tone="warn">{t("placement.driftedIn", { n: s.drifted })}</Mark>}
    </p>
  )
}

function Grid({ rows, subject, onDiff }: { rows: MatrixRow[]; subject: Ref; onDiff: (cluster: string) => void }) {
  const replicas = rows.some((r) => r.replicas)
  const images = rows.some((r) => r.images.length)
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: users scroll it by keyboard.
    <section className="matrix" aria-label={t("placement.title")} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">{t("common.cluster")}</th>
            <th scope="col">{t("placement.health")}</th>
            {replicas && <th scope="col">{t("object.ready")}</th>}
            {images && <th scope="col">{t("object.image")}</th>}
            <th scope="col">{t("placement.overrides")}</th>
            <th scope="col">{t("placement.drift")}</th>
            <th scope="col">
              <span className="hidden">{t("placement.diff")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => (
            <tr key={r.cluster} data-row={r.cluster} data-tone={r.tone}>
              <th scope="row">
                <Link href={clusterLink(r.cluster)}>{r.cluster}</Link>
                {!r.placed && <Badge>{t("placement.notPlaced")}</Badge>}
              </th>
              <td data-label={t("placement.health")}>
                <Mark tone={r.tone}>{t(r.state === "Present" ? `placement.${r.health}` : `placement.${r.state}State`)}</Mark>
                <LastSeen cluster={r.cluster} stale={r.lastSeen} />
                {r.message && <p className="matrix-why selectable">{r.message}</p>}
              </td>
              {replicas && <td data-label={t("object.ready")}>{r.replicas && <Replicas of={r.replicas} />}</td>}
              {images && (
                <td data-label={t("object.image")}>
                  {r.images.map((i) => (
                    <div key={i.container} className="matrix-image" title={[i.container, i.wanted, i.live].filter(Boolean).join("\n")}>
                      <span className={i.odd ? "mono odd" : "mono"}>{shortImage(i.live ?? i.wanted ?? "")}</span>
                      {i.differs && <Badge tone="warn">{t("placement.wanted", { image: shortImage(i.wanted ?? "") })}</Badge>}
                    </div>
                  ))}
                </td>
              )}
              <td data-label={t("placement.overrides")}>
                {r.overrides.length === 0 && <span className="faint">{t("common.none")}</span>}
                {r.overrides.map((o) => (
                  <Link key={`${o.kind}/${o.name}`} className="link" href={policyLink(o)}>
                    {o.name}
                  </Link>
                ))}
              </td>
              <td data-label={t("placement.drift")}>
                {r.drift === undefined ? (
                  <Mark tone="unknown">
                    <span title={r.driftUnknown}>{t("common.unknown")}</span>
                  </Mark>
                ) : r.drift > 0 ? (
                  <Mark tone="warn">{t("placement.fields", { n: r.drift })}</Mark>
                ) : (
                  <span className="faint">{t("common.none")}</span>
                )}
              </td>
              <td className="matrix-actions">
                <Button look="quiet" onClick={() => onDiff(r.cluster)} aria-label={t("placement.diffOf", { cluster: r.cluster })}>
                  {t("placement.diff")}
                </Button>
                <Link className="button quiet" href={objectLink({ ...subject, cluster: r.cluster })} aria-label={t("placement.openIn", { cluster: r.cluster })}>
                  {t("object.open")}
                </Link>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  )
}

function LastSeen({ cluster, stale }: { cluster: string; stale?: string }) {
  const { state, since } = freshnessIn(useFleet(), cluster, stale)
  if (state === "current" || !since) return null
  return (
    <span className="muted">
      {" "}
      <Age since={since} />
    </span>
  )
}

function Replicas({ of }: { of: NonNullable<MatrixRow["replicas"]> }) {
  const wanted = of.wanted ?? of.asked
  return (
    <>
      <Mark tone={of.tone}>
        <span className="number">{`${of.ready ?? "?"} / ${wanted ?? "?"}`}</span>
      </Mark>
      {of.asked !== undefined && of.wanted !== undefined && of.asked !== of.wanted && <Badge tone="warn">{t("placement.asked", { n: of.asked })}</Badge>}
    </>
  )
}

/**
 * The object rendered for a cluster beside the live one: first the fields of the hub that differ,
 * then both as a whole.
 */
function CellDiff({ of, cluster, onClose }: { of: string; cluster: string; onClose: () => void }) {
  const works = useGet<WorkList>(`${fleet}/works`, { of, cluster })
  const work: Work | undefined = works.data?.items?.[0]
  return (
    <Dialog open wide onClose={onClose} title={t("placement.diffTitle", { cluster })} description={t("placement.diffAbout")}>
      <Answered answer={works} lines={8} />
      {work?.driftUnknown && <Notice tone="unknown">{work.driftUnknown}</Notice>}
      {work?.drift && work.drift.length > 0 && (
        <FieldDiff label={t("placement.drift")} fields={work.drift} before={t("placement.rendered")} after={t("placement.live")} />
      )}
      {work?.rendered && work.live ? (
        <Diff before={work.rendered as object} after={work.live as object} label={t("placement.diffTitle", { cluster })} />
      ) : (
        works.data && <Empty title={work?.message ?? works.data.message ?? t("placement.nothingLive")} />
      )}
    </Dialog>
  )
}
