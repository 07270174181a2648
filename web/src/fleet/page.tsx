import { Link } from "wouter"
import { useClusters } from "../cluster/api"
import { HealthMark, tones } from "../cluster/Health"
import { amount } from "../cluster/quantity"
import { useCan } from "../hub/access"
import { clusterLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { Answered } from "../part/Answered"
import { useAddress } from "../part/address"
import { Button } from "../part/Button"
import { Input } from "../part/Field"
import { Badge, Dot } from "../part/Mark"
import { Meter } from "../part/Meter"
import { Empty, Notice } from "../part/Notice"
import { Page } from "../part/Page"
import { age } from "../part/time"
import { type Key, t } from "../text/text"
import { healths, sift, type Tile, tiles } from "./tiles"
import "./fleet.css"

export default function FleetPage() {
  const clusters = useClusters()
  const live = useFleet()
  const mayJoin = useCan({ verb: "create", group: "cluster.orrery.dev", resource: "clusters" })
  const [params, set] = useAddress()
  const words = params.get("q") ?? ""
  const health = params.get("health") ?? ""
  const known = clusters.allowed === false ? live.connected || live.clusters.length > 0 : clusters.data !== undefined
  const all = tiles(clusters.allowed === false ? undefined : (clusters.data ?? []), live.clusters)
  const { shown, counts } = sift(all, words, health)
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
      {clusters.allowed !== false && <Answered answer={clusters} />}
      {!live.connected && live.clusters.length > 0 && <Notice tone="unknown">{t("fleet.disconnected")}</Notice>}
      {all.length > 0 && (
        <div className="filters" role="search">
          <Input type="search" aria-label={t("fleet.search")} placeholder={t("fleet.searchHint")} value={words} onChange={(e) => set("q", e.target.value)} />
          <div role="group" className="chips" aria-label={t("fleet.byHealth")}>
            {healths
              .filter((h) => counts[h] || h === health)
              .map((h) => (
                <Button key={h} aria-pressed={health === h} look="quiet" onClick={() => set("health", health === h ? "" : h)}>
                  <Dot tone={tones[h]} /> {t(`cluster.${h}`)} {counts[h] ?? 0}
                </Button>
              ))}
          </div>
        </div>
      )}
      {known && all.length === 0 && (
        <Empty title={clusters.allowed ? t("fleet.none") : t("fleet.noneVisible")}>{clusters.allowed ? t("fleet.noneMore") : t("fleet.noneVisibleMore")}</Empty>
      )}
      {all.length > 0 && shown.length === 0 && <Empty title={t("fleet.noneMatch")} />}
      <ul className="tiles">
        {shown.map((tile) => (
          <li key={tile.name}>
            <TileLink tile={tile} connected={live.connected} />
          </li>
        ))}
      </ul>
    </Page>
  )
}

const labels: Record<string, Key> = { cpu: "fleet.cpu", memory: "fleet.memory", pods: "fleet.pods" }

function TileLink({ tile, connected }: { tile: Tile; connected: boolean }) {
  return (
    <Link className="tile" data-tone={tones[tile.health]} href={clusterLink(tile.name)}>
      <span className="tile-head">
        <span className="tile-name">{tile.name}</span>
        <HealthMark health={tile.health} since={tile.since} />
      </span>
      <span className="tile-facts">
        {tile.version && <span>{tile.version}</span>}
        {tile.nodes && <span>{`${t("fleet.nodes")} ${t("fleet.nodesOf", { ready: tile.nodes.ready, total: tile.nodes.total })}`}</span>}
        {tile.where && <span>{tile.where}</span>}
        <Lag tile={tile} connected={connected} />
        {tile.agent && <Badge>{t("fleet.agent")}</Badge>}
        {tile.cordoned && <Badge tone="warn">{t("fleet.cordoned")}</Badge>}
      </span>
      {tile.message && <span className="tile-why">{tile.message}</span>}
      {tile.health !== "unreachable" &&
        tile.uses.map((u) => (
          <Meter
            key={u.resource}
            label={t(labels[u.resource] as Key)}
            value={u.ratio}
            text={`${amount(u.resource, u.allocated)} / ${amount(u.resource, u.allocatable)}`}
          />
        ))}
    </Link>
  )
}

/** How far what is shown of a cluster is behind. Of one that does not answer, or without a connection, that is not known. */
function Lag({ tile, connected }: { tile: Tile; connected: boolean }) {
  if (tile.health === "unreachable") return tile.since ? null : <span>{t("object.unknown")}</span>
  if (!connected || tile.lag === undefined) return <span>{t("object.unknown")}</span>
  return <span>{tile.lag > 0 ? `${t("fleet.lag")} ${age(tile.lag * 1000)}` : t("cluster.lagNow")}</span>
}
