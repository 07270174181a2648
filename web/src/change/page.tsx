import { useState } from "react"
import { Link } from "wouter"
import type { Change } from "../history/steps"
import { listable } from "../hub/access"
import { useAnswer } from "../hub/answer"
import { get, mirrored, StatusError } from "../hub/client"
import type { Difference } from "../hub/fields"
import { findKind, type Kind, pathOf, useFleetKinds } from "../hub/kinds"
import { clusterLink, objectLink } from "../hub/link"
import { useRights } from "../hub/rights"
import { useActions } from "../palette/actions"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { useAddress } from "../part/address"
import { Button } from "../part/Button"
import { Filter } from "../part/Filter"
import { Badge, Mark, type Tone } from "../part/Mark"
import { Empty, Notice } from "../part/Notice"
import { Page } from "../part/Page"
import { Select } from "../part/Select"
import { t, time } from "../text/text"
import { beginOf, brief, type Row, rows, sift, watched, within } from "./changes"
import "../cluster/cluster.css"
import "../fleet/fleet.css"
import "./change.css"

const spans = ["-5m", "-15m", "-1h", "-6h", "-1d"]
const page = 200

interface Result {
  at: number
  answers: { kind: Kind; items: Change[] }[]
  cut: Kind[]
  failed: { kind: Kind; message: string }[]
  /** The time from which changes are known, if that is later than the requested time. */
  from?: string
}

/**
 * Requests the changes of each kind, in all namespaces or in each that the user may list. A
 * request that fails is added to failed; the others go on.
 */
async function ask(since: string, chosen: Kind[], namespaces: string[], signal: AbortSignal): Promise<Result> {
  const result: Result = { at: Date.now(), answers: [], cut: [], failed: [] }
  const one = async (kind: Kind) => {
    for (const namespace of await listable(kind, namespaces)) {
      try {
        const answer = await known(mirrored() + pathOf(kind, namespace), since, signal)
        result.answers.push({ kind, items: answer.items ?? [] })
        if (answer.metadata.continue) result.cut.push(kind)
        if (answer.from && answer.from > (result.from ?? "")) result.from = answer.from
      } catch (e) {
        if (signal.aborted) throw e
        // A kind that no cluster serves, or that has no history, has no changes.
        if (!(e instanceof StatusError) || ![400, 404].includes(e.code)) result.failed.push({ kind, message: (e as Error).message })
      }
    }
  }
  // All kinds have the same start of the history. The first answer shows it, so the first kind is
  // requested alone.
  const alone = begins === undefined ? chosen.slice(0, 1) : []
  for (const kind of alone) await one(kind)
  await Promise.all(chosen.slice(alone.length).map(one))
  return result
}

interface Changes {
  items?: Change[]
  metadata: { continue?: string }
  from?: string
}

/**
 * The start of the history as the hub last reported it. "": the hub has refused no time so far;
 * undefined: not asked yet.
 */
let begins: string | undefined

/** The changes of a span. If the hub answers that the history begins later, since that time. */
async function known(path: string, span: string, signal: AbortSignal): Promise<Changes> {
  const asked = async (): Promise<Changes> => {
    const { since, from } = within(span, begins ?? "", Date.now())
    return { ...(await get<Changes>(path, { changedSince: since, limit: page }, signal)), from }
  }
  try {
    const answer = await asked()
    begins ??= ""
    return answer
  } catch (e) {
    const later = e instanceof StatusError && e.code === 410 ? beginOf(e.message) : undefined
    if (!later || later === begins) throw e
    begins = later
    return asked()
  }
}

export default function ChangePage() {
  const rights = useRights()
  const [params, set] = useAddress()
  // For an invalid span the answer would be empty, as if nothing had changed.
  const since = spans.find((span) => span === params.get("since")) ?? "-1h"
  const only = params.get("type") ?? ""
  const words = params.get("q") ?? ""
  const kinds = useFleetKinds()
  const chosen = (only ? [only] : watched).flatMap((name) => findKind(kinds ?? [], name) ?? [])
  const namespaces = rights?.namespaces ?? []
  const answer = useAnswer(
    rights && kinds && ((signal: AbortSignal) => ask(since, chosen, namespaces, signal)),
    JSON.stringify(["changes", since, chosen.map((k) => k.of), namespaces]),
    30_000,
  )
  useActions(() => [{ id: "change.again", section: t("change.title"), title: t("change.again"), run: answer.reload }], [answer.reload])
  const [managers, setManagers] = useState(false)
  const all = answer.data ? rows(answer.data.answers) : []
  const shown = sift(all, words)
  return (
    <Page
      title={t("change.title")}
      about={answer.data && t("change.about", { n: shown.length })}
      actions={
        <>
          <Button aria-pressed={managers} onClick={() => setManagers(!managers)}>
            {t("common.managers")}
          </Button>
          <Button onClick={answer.reload}>{t("change.again")}</Button>
        </>
      }
    >
      <Filter label={t("change.search")} hint={t("change.searchHint")} value={words} onChange={(q) => set("q", q)}>
        <Select
          label={t("change.since")}
          value={since}
          options={spans.map((value) => ({ value, label: t("change.last", { span: value.slice(1) }) }))}
          onChange={(v) => set("since", v)}
        />
        <Select
          label={t("common.kind")}
          value={only}
          options={[
            { value: "", label: t("change.allKinds") },
            ...(kinds ?? []).filter((k) => k.verbs.includes("list")).map((k) => ({ value: k.of, label: k.of })),
          ]}
          onChange={(v) => set("type", v)}
        />
        {answer.data && <span className="muted">{t("common.asOf", { time: time(answer.data.at) })}</span>}
      </Filter>
      <Answered answer={answer} lines={8} />
      {answer.data?.failed.map((f) => (
        <Notice key={f.kind.of} tone="unknown" title={t("change.failed", { kind: f.kind.kind })}>
          {f.message}
        </Notice>
      ))}
      {answer.data?.from && <Notice>{t("change.from", { time: time(answer.data.from) })}</Notice>}
      {answer.data && answer.data.cut.length > 0 && <Notice>{t("change.cut", { kinds: answer.data.cut.map((c) => c.kind).join(", "), n: page })}</Notice>}
      {answer.data && all.length === 0 && <Empty title={t("change.none")}>{t("change.noneMore")}</Empty>}
      {all.length > 0 && shown.length === 0 && <Empty title={t("change.noneMatch")} />}
      <ul className="changes">
        {shown.slice(0, 500).map((r) => (
          <ChangeItem key={r.key} row={r} managers={managers} />
        ))}
      </ul>
      {shown.length > 500 && <p className="muted">{t("change.narrow", { n: shown.length - 500 })}</p>}
    </Page>
  )
}

const tones: Record<Row["change"], Tone> = { Created: "good", Seen: "plain", Updated: "warn", Deleted: "bad", Recreated: "warn" }

function ChangeItem({ row, managers }: { row: Row; managers: boolean }) {
  const [open, setOpen] = useState(false)
  const [first = ""] = row.clusters
  const ref = { cluster: first, kind: row.kind.kind, group: row.kind.group, namespace: row.namespace ?? "", name: row.name }
  return (
    <li className="change" data-row={row.key}>
      <div className="change-head">
        <Mark tone={tones[row.change]}>{t(`change.${row.change}`)}</Mark>
        <Link className="change-name" href={objectLink(ref, { tab: "history" })}>
          {row.kind.kind} {row.namespace && <span className="muted">{row.namespace}/</span>}
          {row.name}
        </Link>
        <span className="badges">
          {row.clusters.slice(0, 4).map((c) => (
            <Link key={c} href={clusterLink(c)}>
              <Badge>{c}</Badge>
            </Link>
          ))}
          {row.clusters.length > 4 && <Badge>+{row.clusters.length - 4}</Badge>}
        </span>
        <span className="muted change-by">
          {managers && row.by.length > 0 && `${t("change.by", { who: row.by.join(", ") })} · `}
          {row.time ? <Age since={row.time} /> : t("common.unknown")}
        </span>
      </div>
      {row.cause && <p className="muted selectable">{row.cause}</p>}
      {row.fields.length > 0 && row.change !== "Created" && (
        <>
          <ul className="fields">
            {(open ? row.fields : row.fields.slice(0, 3)).map((f) => (
              <Field key={f.path} field={f} whole={open} />
            ))}
          </ul>
          {(row.fields.length > 3 || row.fields.some((f) => brief(f.before).endsWith("…") || brief(f.after).endsWith("…"))) && (
            <Button look="quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
              {open ? t("change.less") : t("change.fields", { n: row.fields.length })}
            </Button>
          )}
        </>
      )}
    </li>
  )
}

function Field({ field, whole }: { field: Difference; whole: boolean }) {
  const most = whole ? 10_000 : 120
  return (
    <li className="selectable">
      <span className="mono">{field.path}</span>{" "}
      {field.hidden ? (
        <span className="muted">{t("change.hidden")}</span>
      ) : (
        <>
          {field.before !== undefined && <del>{brief(field.before, most)}</del>} {field.after !== undefined && <ins>{brief(field.after, most)}</ins>}
        </>
      )}
    </li>
  )
}
