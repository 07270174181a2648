import { Link } from "wouter"
import { type Answer, useAnswer } from "../hub/answer"
import { list } from "../hub/client"
import { clusterLink } from "../hub/link"
import { useRights, where } from "../hub/rights"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { useAddress } from "../part/address"
import { Filter } from "../part/Filter"
import { hasWords } from "../part/filter"
import { Mark, type Tone } from "../part/Mark"
import { Empty } from "../part/Notice"
import { SmallTable } from "../part/Page"
import { age } from "../part/time"
import { t } from "../text/text"
import { type Operation, type Phase, progress, type StepState, seconds } from "./operation"

export const operationsPath = "/apis/lifecycle.orrery.dev/v1alpha1/operations"
export const operationPath = (name: string) => `${operationsPath}/${encodeURIComponent(name)}`
export const operationLink = (name: string) => `/operations/${encodeURIComponent(name)}`

export function useMayRead(): boolean | undefined {
  const rights = useRights()
  return rights && where(rights, "list", "lifecycle.orrery.dev", "operations").everywhere
}

/** The operations, of one cluster if it is named, the latest first. */
export function useOperations(cluster?: string): Answer<Operation[]> {
  const may = useMayRead()
  const ask = async (signal: AbortSignal) =>
    (await list<Operation>(operationsPath, undefined, signal)).items
      .filter((o) => !cluster || o.spec.cluster === cluster)
      .sort((a, b) => (b.metadata.creationTimestamp ?? "").localeCompare(a.metadata.creationTimestamp ?? ""))
  return useAnswer(may === false ? async () => [] : may ? ask : undefined, `operations ${cluster ?? ""} ${may}`, 3_000)
}

export const phaseTones: Record<Phase, Tone> = {
  Pending: "plain",
  Running: "plain",
  Paused: "warn",
  Succeeded: "good",
  Failed: "bad",
  Canceled: "unknown",
}

export const stepTones: Record<StepState, Tone> = {
  Pending: "plain",
  Running: "warn",
  Unchanged: "good",
  Changed: "good",
  Reverted: "warn",
  Failed: "bad",
}

export function PhaseMark({ phase = "Pending" }: { phase?: Phase }) {
  return <Mark tone={phaseTones[phase]}>{t(`operation.${phase}`)}</Mark>
}

export function OperationTable({ answer, ofAll }: { answer: Answer<Operation[]>; ofAll?: boolean }) {
  const [params, set] = useAddress()
  const words = ofAll ? (params.get("q") ?? "") : ""
  return (
    <Answered answer={answer}>
      {(all) => {
        const found = all.filter((o) => hasWords(words, [o.metadata.name, o.spec.cluster, o.spec.action, o.status?.phase]))
        return (
          <>
            {ofAll && all.length > 0 && <Filter label={t("operation.filter")} value={words} onChange={(q) => set("q", q)} />}
            {all.length > 0 && found.length === 0 ? <Empty title={t("operation.noneMatch")} /> : <Table all={found} ofAll={ofAll} />}
          </>
        )
      }}
    </Answered>
  )
}

function Table({ all, ofAll }: { all: Operation[]; ofAll?: boolean }) {
  if (all.length === 0) return <Empty title={t("operation.none")}>{t("operation.noneMore")}</Empty>
  return (
    <SmallTable
      label={t("operation.title")}
      head={[
        t("common.name"),
        ...(ofAll ? [t("common.cluster")] : []),
        t("operation.action"),
        t("table.phase"),
        t("operation.steps"),
        t("operation.took"),
        t("common.age"),
      ]}
      rows={all.map((o) => {
        const part = progress(o)
        const took = seconds(o.status?.started, o.status?.finished, Date.now())
        return {
          key: o.metadata.name,
          cells: [
            <Link key="name" href={operationLink(o.metadata.name)}>
              {o.metadata.name}
            </Link>,
            ...(ofAll
              ? [
                  <Link key="cluster" href={clusterLink(o.spec.cluster)}>
                    {o.spec.cluster}
                  </Link>,
                ]
              : []),
            o.spec.action,
            <PhaseMark key="phase" phase={o.status?.phase} />,
            part === undefined ? "" : `${o.status?.stepsDone ?? 0} / ${o.status?.stepsTotal ?? 0}`,
            took === undefined ? "" : age(took * 1000),
            <Age key="age" since={o.metadata.creationTimestamp} />,
          ],
        }
      })}
    />
  )
}
