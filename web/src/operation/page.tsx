import { useState } from "react"
import { Link, useLocation } from "wouter"
import { useCan } from "../hub/access"
import { type Answer, useAnswer } from "../hub/answer"
import { get, list, patch as patchObject, remove, type StatusError } from "../hub/client"
import { clusterLink } from "../hub/link"
import { useAge } from "../part/Age"
import { Answered } from "../part/Answered"
import { Button } from "../part/Button"
import { Dialog, Foot } from "../part/Dialog"
import { Mark } from "../part/Mark"
import { Meter } from "../part/Meter"
import { Empty, Failure, Notice } from "../part/Notice"
import { Absent, Facts, Page, Section } from "../part/Page"
import { age } from "../part/time"
import { t, time } from "../text/text"
import { OperationTable, operationPath, operationsPath, PhaseMark, stepTones, useMayRead, useOperations } from "./Operations"
import { type Act, acts, type HostSteps, hosts, type Operation, type OperationSlice, type Planned, patch, progress, seconds, toneOfChange } from "./operation"
import "../cluster/cluster.css"
import "./operation.css"

export default function OperationPage() {
  const [path] = useLocation()
  const name = decodeURIComponent(path.replace(/^\/operations\/?/, ""))
  return name ? <Run name={name} /> : <Runs />
}

function Runs() {
  const may = useMayRead()
  const answer = useOperations()
  return (
    <Page title={t("operation.title")} about={t("operation.about")}>
      {may === false ? <Empty title={t("operation.refused")}>{t("operation.refusedMore")}</Empty> : <OperationTable answer={answer} ofAll />}
    </Page>
  )
}

interface OperationDetails {
  operation: Operation
  slices: OperationSlice[]
}

function useRun(name: string, may: boolean | undefined): Answer<OperationDetails> {
  const steps = useCan({ verb: "list", group: "lifecycle.orrery.dev", resource: "operationslices" })
  return useAnswer<OperationDetails>(
    may && steps !== undefined
      ? async (signal) => {
          const operation = await get<Operation>(operationPath(name), undefined, signal)
          // Slices are selected by UID: an operation that is created again with the same name has
          // other steps.
          const labelSelector = `lifecycle.orrery.dev/operation-uid=${operation.metadata.uid}`
          const slices = steps ? (await list<OperationSlice>(operationsPath.replace("operations", "operationslices"), { labelSelector }, signal)).items : []
          return { operation, slices }
        }
      : undefined,
    `operation ${name} ${may}`,
    2_000,
  )
}

function Run({ name }: { name: string }) {
  const may = useMayRead()
  const answer = useRun(name, may)
  const mayChange = useCan({ verb: "patch", group: "lifecycle.orrery.dev", resource: "operations", name })
  const mayRemove = useCan({ verb: "delete", group: "lifecycle.orrery.dev", resource: "operations", name })
  const [error, setError] = useState<StatusError>()
  const [asking, setAsking] = useState(false)
  const [, go] = useLocation()
  if (may === false) return <Page title={name}>{<Empty title={t("operation.refused")}>{t("operation.refusedMore")}</Empty>}</Page>
  if (!answer.data) return <Absent title={name} answer={answer} gone={t("operation.gone", { name })} />
  const { operation, slices } = answer.data
  const { spec, status } = operation
  const part = progress(operation)
  async function act(what: Act) {
    setError(undefined)
    try {
      if (what === "retry") {
        await remove(operationPath(name), operation.metadata.uid)
        go("/operations")
        return
      }
      await patchObject(operationPath(name), { spec: patch(what) })
      answer.reload()
    } catch (e) {
      setError(e as StatusError)
    }
  }
  const may2 = (a: Act) => (a === "retry" ? mayRemove : mayChange)
  return (
    <Page
      title={name}
      about={
        <span className="row">
          <PhaseMark phase={status?.phase} /> {spec.action}{" "}
          <Link className="link" href={clusterLink(spec.cluster)}>
            {spec.cluster}
          </Link>
        </span>
      }
      actions={acts(operation)
        .filter(may2)
        .map((a) => (
          <Button
            key={a}
            look={a === "cancel" ? "danger" : "plain"}
            title={t(`operation.${a}About`)}
            onClick={() => (a === "cancel" ? setAsking(true) : act(a))}
          >
            {t(`operation.${a}`)}
          </Button>
        ))}
    >
      {asking && (
        <Dialog
          open
          onClose={() => setAsking(false)}
          title={t("operation.cancelTitle", { name, cluster: spec.cluster })}
          description={t("operation.cancelAbout")}
          foot={
            <Foot
              onClose={() => setAsking(false)}
              look="danger"
              onClick={() => {
                setAsking(false)
                void act("cancel")
              }}
            >
              {t("operation.cancelNow")}
            </Foot>
          }
        />
      )}
      {error && <Failure error={error} />}
      <Answered answer={answer} />
      {status?.message && (
        <Notice tone={status.phase === "Failed" ? "bad" : status.phase === "Paused" ? "warn" : "plain"}>
          <span className="selectable">{status.message}</span>
        </Notice>
      )}
      {spec.paused && status?.phase === "Running" && <Notice tone="warn">{t("operation.willPause")}</Notice>}
      {part !== undefined && <Meter label={t("operation.steps")} tone="plain" value={part} text={`${status?.stepsDone ?? 0} / ${status?.stepsTotal ?? 0}`} />}
      <Facts
        facts={[
          [t("operation.began"), status?.started ? time(status.started) : t("operation.notYet")],
          [
            t("operation.ended"),
            status?.finished ? time(status.finished) : status?.estimate ? t("operation.about2", { time: time(status.estimate) }) : t("operation.notYet"),
          ],
          [t("operation.attempt"), status?.attempt ?? 0],
          [
            t("operation.plan"),
            <span key="plan" className="mono selectable">
              {(status?.planHash ?? spec.planHash ?? "").slice(0, 16) || t("common.none")}
            </span>,
          ],
        ]}
      />
      {status?.plan && (
        <Section title={t("operation.plan")}>
          <div className="hosts">
            {status.plan.map((p) => (
              <Plan key={p.hosts.join()} of={p} open={status.plan?.length === 1} />
            ))}
          </div>
        </Section>
      )}
      <Section title={t("cluster.hosts")}>
        <div className="hosts">
          {hosts(operation, slices).map((h) => (
            <HostRun key={h.name} host={h} open={h.state === "Failed" || h.state === "Running"} />
          ))}
        </div>
      </Section>
    </Page>
  )
}

/** The planned changes on some hosts, as a diff. */
function Plan({ of, open }: { of: Planned; open: boolean }) {
  const { hosts, changes = [], left = 0 } = of
  return (
    <details className="host" open={open}>
      <summary>
        <span className="host-name">{hosts.map((name) => (name === "cluster" ? t("operation.throughAPI") : name)).join(", ")}</span>
        <span className="muted">{t("operation.changes", { n: changes.length + left })}</span>
      </summary>
      <ul className="steps">
        {changes.map((line) => (
          <li key={line}>
            <Mark tone={toneOfChange(line)}>
              <span className="mono selectable">{line}</span>
            </Mark>
          </li>
        ))}
        {left > 0 && <li className="muted">{t("why.more", { n: left })}</li>}
      </ul>
    </details>
  )
}

function HostRun({ host, open }: { host: HostSteps; open: boolean }) {
  // A host that the user opened stays open when it is done.
  const [chosen, setChosen] = useState<boolean>()
  const shown = chosen ?? open
  return (
    <details className="host" open={shown} onToggle={({ currentTarget: { open: now } }) => now !== shown && setChosen(now)}>
      <summary>
        <span className="host-name">{host.name === "cluster" ? t("operation.throughAPI") : host.name}</span>
        <Mark tone={stepTones[host.state]}>{t(`operation.step${host.state}`)}</Mark>
        <span className="muted">{[host.stage, host.total ? `${host.done ?? 0} / ${host.total}` : ""].filter(Boolean).join(" · ")}</span>
      </summary>
      {host.message && <p className="bad selectable">{host.message}</p>}
      <ol className="steps">
        {host.steps.map((s) => (
          <li key={s.id}>
            <Mark tone={stepTones[s.state]}>
              <span className="mono">{s.id}</span>
            </Mark>
            <span className="muted">
              {t(`operation.step${s.state}`)} <Took started={s.started} finished={s.finished} />
              {(s.attempt ?? 1) > 1 && ` · ${t("operation.attemptOf", { n: s.attempt ?? 1 })}`}
            </span>
            {s.message && <pre className="step-message selectable">{s.message}</pre>}
          </li>
        ))}
        {host.steps.length === 0 && <li className="muted">{t("operation.noSteps")}</li>}
      </ol>
    </details>
  )
}

function Took({ started, finished }: { started?: string; finished?: string }) {
  const running = useAge(finished ? undefined : started)
  const took = finished ? age((seconds(started, finished, 0) ?? 0) * 1000) : running
  return <>{took}</>
}
