import { useId, useMemo, useState } from "react"
import { useAnswer, useGet } from "../hub/answer"
import { type Edit, json } from "../hub/apply"
import { get, mirrored, type Obj, own, StatusError } from "../hub/client"
import { diff, type JsonObject } from "../hub/fields"
import { editable } from "../hub/intent"
import { type Kind, pathOf } from "../hub/kinds"
import type { Ref } from "../hub/link"
import { write } from "../object/merge"
import { plain } from "../object/object"
import { Save } from "../object/Save"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { Button } from "../part/Button"
import { Diff } from "../part/Diff"
import { FieldDiff } from "../part/FieldDiff"
import { Mark, type Tone } from "../part/Mark"
import { Empty, Failure, Notice } from "../part/Notice"
import { Section } from "../part/Page"
import { Select } from "../part/Select"
import { type Key, t, time } from "../text/text"
import "./history.css"
import { authors, type Change, moment, type Step, stepsOf } from "./steps"

type Props = { of: Ref; kind: Kind; mayWrite: boolean; onSaved: () => void }
type Changes = { items: Change[]; metadata: { continue?: string } }

const tones: Record<Change["change"], Tone> = { Created: "good", Seen: "plain", Updated: "plain", Deleted: "bad", Recreated: "warn" }

/** The changes of an object, their authors, and the object at each moment. */
export default function History(props: Props) {
  const { of, kind } = props
  const path = mirrored(of.cluster) + pathOf(kind, of.namespace, of.name)
  const [all, setAll] = useState(false)
  const [managers, setManagers] = useState(false)
  const answer = useGet<Changes>(path, { history: true, limit: 200, allFields: all || undefined }, 15_000)
  const { data, error } = answer
  const clusters = [...new Set(data?.items.map((c) => c.cluster))].sort()
  const [chosen, setChosen] = useState("")
  const cluster = clusters.includes(chosen) ? chosen : (clusters[0] ?? "")
  const steps = useMemo(() => stepsOf((data?.items ?? []).filter((c) => c.cluster === cluster && (all || beyondStatus(c)))), [data, cluster, all])
  const nothing = <Empty title={t("object.noHistory")}>{t("object.noHistoryMore")}</Empty>
  if (error?.code === 404) return nothing
  if (!data) return <Answered answer={answer} />
  if (data.items.length === 0) return nothing
  return (
    <div className="stack">
      <Answered answer={answer} />
      <div className="row">
        {clusters.length > 1 && (
          <Select label={t("common.cluster")} value={cluster} onChange={setChosen} options={clusters.map((value) => ({ value, label: value }))} />
        )}
        <Button aria-pressed={all} onClick={() => setAll(!all)}>
          {t("object.allFields")}
        </Button>
        <Button aria-pressed={managers} onClick={() => setManagers(!managers)}>
          {t("common.managers")}
        </Button>
        {data.metadata.continue && <span className="muted">{t("object.moreHistory")}</span>}
      </div>
      {steps.length === 0 && nothing}
      {steps.length > 0 && <Slider key={cluster} {...props} of={{ ...of, cluster }} hub={of.cluster === ""} steps={steps} managers={managers} />}
    </div>
  )
}

/** Unless all fields are shown, a change of nothing but status is hidden. */
const beyondStatus = (change: Change): boolean => change.change !== "Updated" || (change.fields?.length ?? 0) > 0

type SliderProps = Props & { steps: Step[]; hub: boolean; managers: boolean }

function Slider({ of, kind, mayWrite, onSaved, steps, hub, managers }: SliderProps) {
  const marks = useId()
  const [at, setAt] = useState(steps.length - 1)
  const [against, setAgainst] = useState<"before" | "now">("before")
  const [restoring, setRestoring] = useState<Edit>()
  const [failed, setFailed] = useState<Error>()
  const place = Math.min(at, steps.length - 1)
  const step = steps[place]!
  const path = mirrored(of.cluster) + pathOf(kind, of.namespace, of.name)
  const state = useAnswer((signal) => stateAt(path, moment(step), signal), `state ${path} ${step.time}`)
  const other = against === "now" ? undefined : steps[place - 1]
  const known = against === "now" || (other !== undefined && moment(other) !== undefined)
  const compared = useAnswer(known ? (signal) => stateAt(path, other && moment(other), signal) : undefined, `state ${path} ${against} ${other?.time}`)
  const restore = async () => {
    if (!state.data) return
    const target = own(of.cluster) + pathOf(kind, of.namespace, of.name)
    try {
      const live = await get(target).catch((e) => {
        if (e instanceof StatusError && e.code === 404) return undefined
        throw e
      })
      setRestoring({
        path: target,
        text: write(state.data),
        base: live && editable(json(live)),
        keep: kind.kind === "Secret" ? ["data", "stringData"] : [],
      })
    } catch (e) {
      setFailed(e as Error)
    }
  }
  const [before, after] = against === "now" ? [state.data, compared.data] : [compared.data, state.data]
  return (
    <>
      <Section title={step.time ? time(step.time) : t("object.beforeHistory")} actions={<Age since={step.time} />}>
        <div className="timeline">
          <input
            type="range"
            aria-label={t("object.moment")}
            aria-valuetext={`${step.time ? time(step.time) : t("object.beforeHistory")}: ${step.changes.map((c) => t(`object.change${c.change}` as Key)).join(", ")}`}
            list={marks}
            min={0}
            max={steps.length - 1}
            value={place}
            onChange={(e) => setAt(Number(e.target.value))}
          />
          <datalist id={marks}>
            {steps.map((s, i) => (
              <option key={s.time} value={i} />
            ))}
          </datalist>
          <div className="timeline-ends muted number" aria-hidden="true">
            <span>{steps[0]?.time ? time(steps[0].time) : t("object.beforeHistory")}</span>
            <span>{t("object.stepOf", { n: place + 1, of: steps.length })}</span>
            <span>{time(steps.at(-1)?.time ?? "")}</span>
          </div>
        </div>
        {step.changes.map((change) => (
          <div key={`${change.uid} ${change.revision}`} className="stack">
            <p className="row">
              <Mark tone={tones[change.change]}>{t(`object.change${change.change}` as Key)}</Mark>
              {managers && <span>{authors(change) || t("object.nobodyKnown")}</span>}
              {change.cause && <span className="muted selectable">{change.cause}</span>}
            </p>
            {(change.fields?.length ?? 0) > 0 && <FieldDiff label={t("object.changedFields")} fields={change.fields ?? []} />}
          </div>
        ))}
      </Section>
      <div className="row">
        <Select
          label={t("object.compare")}
          value={against}
          onChange={(value) => setAgainst(value as "before" | "now")}
          options={[
            { value: "before", label: t("object.compareBefore") },
            { value: "now", label: t("object.compareNow") },
          ]}
        />
        {mayWrite && !hub && state.data && <Button onClick={() => void restore()}>{t("object.restore")}</Button>}
      </div>
      {failed && <Failure error={failed} />}
      {state.error && !gone(state.error) && <Failure error={state.error} />}
      {(!step.there || (state.error && gone(state.error))) && <Notice title={t("object.notThere")} />}
      {(before || after) && !state.loading && !compared.loading && (
        <>
          <p className="muted">{t("object.differences", { n: diff(before, after).length })}</p>
          <Diff before={before} after={after} label={t("object.diff")} />
        </>
      )}
      {restoring && (
        <Save
          of={of}
          edit={restoring}
          title={t("object.restoreTitle", { time: time(step.time) })}
          onClose={() => setRestoring(undefined)}
          onSaved={() => {
            setRestoring(undefined)
            onSaved()
          }}
        />
      )}
    </>
  )
}

const gone = (error: StatusError): boolean => error.code === 404 || error.code === 410

async function stateAt(path: string, at: string | undefined, signal: AbortSignal): Promise<JsonObject | undefined> {
  try {
    return editable(json(plain(await get<Obj>(path, { at }, signal))))
  } catch (e) {
    if (e instanceof StatusError && e.code === 404) return undefined
    throw e
  }
}
