import { useState } from "react"
import type { StatusError } from "../hub/client"
import { freshness } from "../hub/freshness"
import { useFleet } from "../hub/live"
import { Conditions } from "../object/Conditions"
import { Age, useAge } from "../part/Age"
import { Button, IconButton } from "../part/Button"
import { Dialog, Foot } from "../part/Dialog"
import { Field, Input, Typed } from "../part/Field"
import { Icon } from "../part/Icon"
import { Badge } from "../part/Mark"
import { Meter } from "../part/Meter"
import { Failure, Notice } from "../part/Notice"
import { Facts, Section } from "../part/Page"
import { Moves } from "../policy/Moves"
import { t, time } from "../text/text"
import { type Cluster, capacity, condition, parseTaint, retaint, type Taint, taintText } from "./cluster"
import { amount } from "./quantity"
import { setTaint } from "./taint"

type Props = { cluster: Cluster; mayChange: boolean; changed: () => void; lost: boolean }

export function Overview({ cluster, mayChange, changed, lost }: Props) {
  const { spec, status, metadata } = cluster
  const uses = capacity(cluster)
  return (
    <div className={`stack ${lost ? "last-known" : ""}`}>
      <Section title={t("cluster.facts")}>
        <Facts
          facts={[
            [t("cluster.version"), status?.kubernetesVersion ?? t("common.unknown")],
            [t("cluster.nodesReady"), status?.nodeSummary ? `${status.nodeSummary.ready} / ${status.nodeSummary.total}` : t("common.unknown")],
            [t("cluster.apis"), apis(cluster)],
            [t("cluster.lag"), <Lag key="lag" name={metadata.name} />],
            [t("object.where"), [spec.provider, spec.region, ...(spec.zones ?? [])].filter(Boolean).join(" · ") || t("common.none")],
            [t("cluster.dials"), spec.syncMode === "Pull" ? t("cluster.pull") : t("cluster.push")],
            [
              t("cluster.endpoint"),
              <span key="endpoint" className="mono selectable">
                {spec.apiEndpoint ?? t("common.none")}
              </span>,
            ],
            [t("cluster.joined"), <Age key="age" since={metadata.creationTimestamp} />],
            [t("object.labels"), <Labels key="labels" labels={metadata.labels} />],
          ]}
        />
      </Section>
      {spec.syncMode === "Pull" && <AgentFacts cluster={cluster} />}
      <Section title={t("object.capacity")}>
        {uses.length === 0 && <p className="muted">{t("cluster.capacityNone")}</p>}
        <div className="meters">
          {uses.map((u) => (
            <Meter
              key={u.resource}
              label={u.resource}
              value={u.ratio}
              text={t("cluster.capacityOf", { used: amount(u.resource, u.allocated), total: amount(u.resource, u.allocatable) })}
            />
          ))}
        </div>
      </Section>
      <Taints cluster={cluster} mayChange={mayChange} changed={changed} />
      <Conditions object={cluster} />
    </div>
  )
}

function apis(c: Cluster): string {
  const a = c.status?.apis
  if (!a) return t("common.unknown")
  return t(a.completeness === "Partial" ? "cluster.apisPartial" : "cluster.apisOf", { n: a.count })
}

function Lag({ name }: { name: string }) {
  const { state, since } = freshness(useFleet(), name)
  const age = useAge(since)
  if (state === "current") return <>{t("cluster.lagNow")}</>
  if (age) return <>{t("cluster.lagBehind", { age })}</>
  return <>{t(state === "reading" ? "cluster.mirrorReading" : state === "lost" ? "cluster.lagNever" : "cluster.lagUnknown")}</>
}

function Labels({ labels }: { labels?: Record<string, string> }) {
  const all = Object.entries(labels ?? {})
  if (all.length === 0) return <>{t("common.none")}</>
  return (
    <span className="badges">
      {all.map(([k, v]) => (
        <Badge key={k}>{v ? `${k}=${v}` : k}</Badge>
      ))}
    </span>
  )
}

function AgentFacts({ cluster }: { cluster: Cluster }) {
  const agent = cluster.status?.agent
  const profile = cluster.spec.agent?.profile ?? "All"
  return (
    <Section title={t("cluster.agent")}>
      {!agent?.replicas && <Notice tone="unknown">{condition(cluster, "AgentConnected")?.message ?? t("cluster.agentGone")}</Notice>}
      <Facts
        facts={[
          [t("cluster.agentVersion"), agent?.version ?? t("common.unknown")],
          [t("cluster.agentReplicas"), agent?.replicas ?? 0],
          [t("cluster.agentSpares"), agent?.spares ?? 0],
          [t("cluster.agentSince"), <Age key="since" since={agent?.connectedSince} />],
          [
            t("cluster.agentAddress"),
            <span key="address" className="mono selectable">
              {agent?.address ?? t("common.unknown")}
            </span>,
          ],
          [t("cluster.agentCertificate"), agent?.certificateExpires ? time(agent.certificateExpires) : t("common.unknown")],
          [t("cluster.agentProfile"), t(`cluster.profile${profile}`, { namespaces: cluster.spec.agent?.namespaces?.join(", ") ?? "" })],
        ]}
      />
    </Section>
  )
}

type TaintChange = { taint: Taint; on: boolean }

function Taints({ cluster, mayChange, changed }: { cluster: Cluster; mayChange: boolean; changed: () => void }) {
  const [text, setText] = useState("")
  const [wrong, setWrong] = useState(false)
  const [asked, setAsked] = useState<TaintChange>()
  const [error, setError] = useState<StatusError>()
  const taints = cluster.spec.taints ?? []
  async function put(change: TaintChange) {
    setError(undefined)
    try {
      await setTaint(cluster.metadata.name, change.taint, change.on)
      setText("")
      setAsked(undefined)
      changed()
    } catch (e) {
      setError(e as StatusError)
    }
  }
  /** A taint that evicts is changed in a dialog, which first shows what moves. */
  function ask(change: TaintChange) {
    if (change.taint.effect !== "NoExecute") return put(change)
    setError(undefined)
    setAsked(change)
  }
  return (
    <Section title={t("object.taints")}>
      {asked && <Retaint cluster={cluster} {...asked} error={error} onPut={() => put(asked)} onClose={() => setAsked(undefined)} />}
      {error && !asked && <Failure error={error} />}
      {taints.length === 0 && <p className="muted">{t("cluster.taintsNone")}</p>}
      <ul className="badges bare">
        {taints.map((taint) => (
          <li key={taintText(taint)}>
            <Badge tone="warn">{taintText(taint)}</Badge>
            {mayChange && (
              <IconButton label={t("cluster.taintRemove", { taint: taintText(taint) })} onClick={() => ask({ taint, on: false })}>
                <Icon name="close" />
              </IconButton>
            )}
          </li>
        ))}
      </ul>
      {mayChange && (
        <form
          className="inline"
          onSubmit={(e) => {
            e.preventDefault()
            const taint = parseTaint(text)
            setWrong(!taint)
            if (taint) ask({ taint, on: true })
          }}
        >
          <Field label={t("cluster.taintAdd")} error={wrong ? t("cluster.taintWrong") : undefined}>
            {(id, about) => (
              <Input id={id} aria-describedby={about} value={text} placeholder={t("cluster.taintHint")} onChange={(e) => setText(e.target.value)} />
            )}
          </Field>
          <Button type="submit">{t("cluster.taintAdd")}</Button>
        </form>
      )}
      {mayChange && <p className="field-hint">{t("cluster.taintAbout")}</p>}
    </Section>
  )
}

type RetaintProps = TaintChange & { cluster: Cluster; error?: StatusError; onPut: () => Promise<void>; onClose: () => void }

/**
 * Shows what moves when a taint that evicts is added or removed. If many replicas move, the user
 * must type the name of the cluster.
 */
function Retaint({ cluster, taint, on, error, onPut, onClose }: RetaintProps) {
  const { name } = cluster.metadata
  const [many, setMany] = useState<boolean>()
  const [typed, setTyped] = useState("")
  const [busy, setBusy] = useState(false)
  const act = () => {
    setBusy(true)
    void onPut().finally(() => setBusy(false))
  }
  return (
    <Dialog
      open
      onClose={onClose}
      title={t(on ? "cluster.taintTitle" : "cluster.untaintTitle", { name, taint: taintText(taint) })}
      foot={
        <Foot onClose={onClose} look={on ? "danger" : "main"} disabled={busy || many === undefined || (many && typed !== name)} onClick={act}>
          {on ? t("cluster.taintAdd") : t("cluster.taintRemove", { taint: taintText(taint) })}
        </Foot>
      }
    >
      <Moves about={on ? t("cluster.evicts") : undefined} change={{ cluster: { name, taints: retaint(cluster.spec.taints, taint, on) } }} onMany={setMany} />
      {many && <Typed name={name} value={typed} onChange={setTyped} />}
      {error && <Failure error={error} />}
    </Dialog>
  )
}
