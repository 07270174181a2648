import { type ReactNode, useState } from "react"
import { Link, useParams, useSearchParams } from "wouter"
import { liveHealth } from "../fleet/tiles"
import { useCan } from "../hub/access"
import { fleet, type StatusError } from "../hub/client"
import { type Freshness, freshness } from "../hub/freshness"
import { objectLink, tableLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { useActions } from "../palette/actions"
import { Button } from "../part/Button"
import { Failure, Notice } from "../part/Notice"
import { Absent, Page } from "../part/Page"
import { type Tab, Tabs } from "../part/Tabs"
import { t } from "../text/text"
import { useCluster } from "./api"
import { type Cluster, cordoned, unschedulable, verdictNow } from "./cluster"
import { HealthMark } from "./Health"
import { Hosts } from "./Hosts"
import { Overview } from "./Overview"
import { MirrorTab, Nodes, Placed } from "./Placed"
import { setTaint } from "./taint"
import { Unjoin } from "./Unjoin"
import "./cluster.css"

export default function ClusterPage() {
  const { name = "" } = useParams()
  const answer = useCluster(name)
  const is = freshness(useFleet(), name)
  if (answer.allowed === false) return <Restricted name={name} is={is} />
  if (!answer.data) {
    return (
      <Absent title={name} answer={answer} gone={t("cluster.gone", { name })}>
        {t("cluster.goneMore")}
      </Absent>
    )
  }
  return <Known cluster={answer.data} reload={answer.reload} stale={answer.error} fresh={is} />
}

type KnownProps = { cluster: Cluster; reload: () => void; stale?: StatusError; fresh: Freshness }

function Known({ cluster, reload, stale, fresh }: KnownProps) {
  const { name } = cluster.metadata
  const is = verdictNow(cluster, fresh)
  const seen = (content: ReactNode) => <div className={is.health === "unreachable" ? "last-known" : undefined}>{content}</div>
  const mayChange = useCan({ verb: "patch", group: "cluster.orrery.dev", resource: "clusters", name })
  const mayRemove = useCan({ verb: "delete", group: "cluster.orrery.dev", resource: "clusters", name })
  const [leaves, setLeaves] = useState(false)
  const [error, setError] = useState<StatusError>()
  const [params, setParams] = useSearchParams()
  const off = cordoned(cluster)
  const leaving = cluster.metadata.deletionTimestamp !== undefined
  async function cordon() {
    setError(undefined)
    try {
      await setTaint(name, unschedulable, !off)
      reload()
    } catch (e) {
      setError(e as StatusError)
    }
  }
  const tabs: Tab[] = [
    {
      value: "overview",
      label: t("object.overview"),
      content: <Overview cluster={cluster} mayChange={mayChange ?? false} changed={reload} lost={is.health === "unreachable"} />,
    },
    { value: "nodes", label: t("cluster.nodes"), content: seen(<Nodes cluster={name} />) },
    { value: "placed", label: t("cluster.placed"), content: seen(<Placed cluster={name} />) },
    {
      value: "mirror",
      label: t("cluster.mirror"),
      content: <MirrorTab path={`${fleet}/clusters/${encodeURIComponent(name)}/mirror`} />,
    },
  ]
  if (cluster.spec.provision) tabs.push({ value: "hosts", label: t("cluster.hosts"), content: <Hosts cluster={cluster} /> })
  const show = (tab: string) => setParams(tab === "overview" ? {} : { tab }, { replace: true })
  useActions(
    () => [
      ...tabs.map((tab) => ({ id: `cluster.${tab.value}`, section: name, title: String(tab.label), run: () => show(tab.value) })),
      ...(mayChange
        ? [
            {
              id: "cluster.cordon",
              section: name,
              title: t(off ? "cluster.uncordon" : "cluster.cordon"),
              words: off ? "uncordon" : "cordon",
              run: () => void cordon(),
            },
          ]
        : []),
      ...(mayRemove && !leaving ? [{ id: "cluster.unjoin", section: name, title: t("cluster.unjoin"), run: () => setLeaves(true) }] : []),
    ],
    [name, tabs.length, mayChange, mayRemove, leaving, off],
  )
  return (
    <Page
      title={name}
      about={<HealthMark health={is.health} since={is.since} />}
      links={[
        [tableLink("Pod", { cluster: name }), t("cluster.objects")],
        [`/changes?q=${encodeURIComponent(name)}`, t("change.title")],
        [objectLink({ cluster: "", kind: "Cluster", group: "cluster.orrery.dev", namespace: "", name }), "YAML"],
      ]}
      actions={
        <>
          {mayChange && (
            <Button onClick={cordon} title={t("cluster.cordonAbout", { name })}>
              {off ? t("cluster.uncordon") : t("cluster.cordon")}
            </Button>
          )}
          {mayRemove && !leaving && (
            <Button look="danger" onClick={() => setLeaves(true)}>
              {t("cluster.unjoin")}
            </Button>
          )}
        </>
      }
    >
      {error && <Failure error={error} />}
      {stale && <Failure error={stale} retry={reload} />}
      {is.health === "unreachable" && (
        <Notice tone="unknown" title={t("cluster.unreachableTitle", { name })}>
          <p>{t("cluster.unreachableAbout")}</p>
          <p className="selectable">{is.by?.message}</p>
        </Notice>
      )}
      {["unready", "warning", "leaving"].includes(is.health) && is.by?.message && (
        <Notice tone={is.health === "unready" ? "bad" : "warn"} title={is.by.reason}>
          <span className="selectable">{is.by.message}</span>
        </Notice>
      )}
      {off && <Notice tone="warn">{t("cluster.cordoned")}</Notice>}
      <Tabs label={t("cluster.tabs")} value={params.get("tab") ?? "overview"} tabs={tabs} onChange={show} />
      {leaves && <Unjoin cluster={cluster} onClose={() => setLeaves(false)} />}
    </Page>
  )
}

/** Users who may not read Clusters see the objects of their namespaces in this cluster. */
function Restricted({ name, is }: { name: string; is: Freshness }) {
  return (
    <Page title={name} about={<HealthMark health={liveHealth(is)} since={is.since} />}>
      <Notice title={t("cluster.refused")}>{t("cluster.refusedMore")}</Notice>
      <Link className="button" href={`/table?q=${encodeURIComponent(`cluster:${name}`)}`}>
        {t("cluster.yours")}
      </Link>
    </Page>
  )
}
