import { useState } from "react"
import { Link, useLocation } from "wouter"
import { useClusters } from "../cluster/api"
import { unschedulable } from "../cluster/cluster"
import { HealthMark, tones } from "../cluster/Health"
import { amount } from "../cluster/quantity"
import { setTaint } from "../cluster/taint"
import { useCan } from "../hub/access"
import { useGet } from "../hub/answer"
import type { List, StatusError } from "../hub/client"
import { clusterLink, tableLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { useRights, where } from "../hub/rights"
import { useActions } from "../palette/actions"
import { useAge } from "../part/Age"
import { Answered } from "../part/Answered"
import { useAddress } from "../part/address"
import { Button } from "../part/Button"
import { Filter } from "../part/Filter"
import { Badge, Dot } from "../part/Mark"
import { Meter } from "../part/Meter"
import { Empty, Failure, Notice } from "../part/Notice"
import { Page } from "../part/Page"
import { type Key, t } from "../text/text"
import { healths, paused, sift, type Tile, tiles } from "./tiles"
import "./fleet.css"

export default function FleetPage() {
  const clusters = useClusters()
  const live = useFleet()
  const mayJoin = useCan({ verb: "create", group: "cluster.orrery.dev", resource: "clusters" })
  const mayCordon = useCan({ verb: "patch", group: "cluster.orrery.dev", resource: "clusters" })
  const [failed, setFailed] = useState<StatusError>()
  const [params, set] = useAddress()
  const words = params.get("q") ?? ""
  const health = params.get("health") ?? ""
  const known = clusters.allowed === false ? live.connected || live.clusters.length > 0 : clusters.data !== undefined
  const all = tiles(clusters.allowed === false ? undefined : (clusters.data ?? []), live)
  const { shown, counts } = sift(all, words, health)
  const [, navigate] = useLocation()
  const [chosen, setChosen] = useState("")
  const of = shown.find((tile) => tile.name === chosen)
  useActions(() => {
    const section = chosen
    const go = (id: string, title: string, href: string) => ({ id: `fleet.${id}`, section, title, run: () => navigate(href) })
    return [
      ...(of ? [go("open", t("object.open"), clusterLink(chosen)), go("objects", t("cluster.objects"), tableLink("Pod", { cluster: chosen }))] : []),
      ...(of && mayCordon
        ? [
            {
              id: "cluster.cordon",
              section,
              title: t(of.cordoned ? "cluster.uncordon" : "cluster.cordon"),
              words: of.cordoned ? "uncordon" : "cordon",
              run: () => void setTaint(chosen, unschedulable, !of.cordoned).then(clusters.reload, setFailed),
            },
          ]
        : []),
    ]
  }, [chosen, of?.cordoned, mayCordon])
  return (
    <Page
      title={t("fleet.title")}
      about={known && t("fleet.about", { n: all.length })}
      actions={
        mayJoin && (
          <Link className="button main" href="/join">
            {t("join.title")}
          </Link>
        )
      }
    >
      {failed && <Failure error={failed} />}
      <Paused />
      {clusters.allowed !== false && <Answered answer={clusters} />}
      {!live.connected && live.clusters.length > 0 && <Notice tone="unknown">{t("fleet.disconnected")}</Notice>}
      {all.length > 0 && (
        <Filter label={t("fleet.search")} hint={t("fleet.searchHint")} value={words} onChange={(q) => set("q", q)}>
          <div role="group" className="chips" aria-label={t("fleet.byHealth")}>
            {healths
              .filter((h) => counts[h] || h === health)
              .map((h) => (
                <Button key={h} aria-pressed={health === h} look="quiet" onClick={() => set("health", health === h ? "" : h)}>
                  <Dot tone={tones[h]} /> {t(`cluster.${h}`)} {counts[h] ?? 0}
                </Button>
              ))}
          </div>
        </Filter>
      )}
      {known && all.length === 0 && (
        <Empty title={clusters.allowed ? t("fleet.none") : t("fleet.noneVisible")}>{clusters.allowed ? t("fleet.noneMore") : t("fleet.noneVisibleMore")}</Empty>
      )}
      {all.length > 0 && shown.length === 0 && <Empty title={t("fleet.noneMatch")} />}
      <ul className="tiles">
        {shown.map((tile) => (
          <li key={tile.name} data-row={tile.name} onFocus={() => setChosen(tile.name)}>
            <TileLink tile={tile} />
          </li>
        ))}
      </ul>
    </Page>
  )
}

/** Shows that failover is paused, by whom and why, to users who may read that on the hub. */
function Paused() {
  const { everywhere, namespaces } = where(useRights(), "list", "", "configmaps")
  const path = everywhere || namespaces.includes("orrery-cluster") ? "/api/v1/namespaces/orrery-cluster/configmaps" : undefined
  // A list, because it is no error if the ConfigMap does not exist.
  const { data } = useGet<List>(path, { fieldSelector: "metadata.name=failover" }, 10_000)
  const said = paused(data?.items[0]?.data)
  if (said === undefined) return null
  return (
    <Notice tone="warn" title={t("fleet.paused")}>
      {said} {t("fleet.pausedMore")}
    </Notice>
  )
}

function TileLink({ tile }: { tile: Tile }) {
  return (
    <Link className="tile" data-tone={tones[tile.health]} href={clusterLink(tile.name)}>
      <span className="tile-head">
        <span className="tile-name">{tile.name}</span>
        <HealthMark health={tile.health} since={tile.since} />
      </span>
      <span className={`tile-facts ${tile.health === "unreachable" ? "last-known" : ""}`}>
        {tile.version && <span>{tile.version}</span>}
        {tile.nodes && <span>{`${t("fleet.nodes")} ${t("fleet.nodesOf", { ready: tile.nodes.ready, total: tile.nodes.total })}`}</span>}
        {tile.where && <span>{tile.where}</span>}
        <Lag tile={tile} />
        {tile.agent && <Badge>{t("fleet.agent")}</Badge>}
        {tile.cordoned && <Badge tone="warn">{t("fleet.cordoned")}</Badge>}
      </span>
      {tile.message && <span className="tile-why">{tile.message}</span>}
      {tile.health !== "unreachable" &&
        tile.uses.map((u) => (
          <Meter
            key={u.resource}
            label={t(`cluster.${u.resource}` as Key)}
            value={u.ratio}
            text={`${amount(u.resource, u.allocated)} / ${amount(u.resource, u.allocatable)}`}
          />
        ))}
    </Link>
  )
}

/**
 * The age of a cluster's data. For a cluster that does not answer, the header of the card shows
 * it.
 */
function Lag({ tile: { health, since, fresh } }: { tile: Tile }) {
  const age = useAge(fresh.since)
  if (health === "unreachable") return since ? null : <span>{t("object.unknown")}</span>
  if (fresh.state === "behind" && age) return <span>{`${t("fleet.lag")} ${age}`}</span>
  if (fresh.state === "reading") return <span>{t("cluster.mirrorReading")}</span>
  // A cluster that is not ready may have stopped answering a moment ago, which the hub does not
  // know yet.
  if (fresh.state === "current") return health === "unready" ? null : <span>{t("cluster.lagNow")}</span>
  return <span>{t("object.unknown")}</span>
}
