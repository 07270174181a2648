import { Link } from "wouter"
import { clusterLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { useAge } from "../part/Age"
import { Dot } from "../part/Mark"
import { Tooltip } from "../part/Tooltip"
import { t } from "../text/text"
import { toneOfCluster } from "./lag"

/** How current what is shown of each cluster is: a quiet strip, in which those that are behind stand out. */
export function Lag() {
  const { clusters, connected } = useFleet()
  if (!connected && clusters.length) {
    return (
      <output className="lag">
        <Dot tone="unknown" />
        <span className="wide-only">{t("layout.disconnected")}</span>
      </output>
    )
  }
  const behind = clusters.filter((c) => toneOfCluster(c) !== "good")
  const synced = clusters.length - behind.length
  return (
    <ul className="lag" aria-label={t("layout.lag")}>
      {synced > 0 && (
        <li className="lag-item">
          <Dot tone="good" />
          <span className="wide-only">{t("layout.synced", { n: synced })}</span>
        </li>
      )}
      {behind.slice(0, 4).map((c) => (
        <LagItem key={c.name} cluster={c} />
      ))}
      {behind.length > 4 && (
        <li className="lag-item">
          <Link href="/">+{behind.length - 4}</Link>
        </li>
      )}
    </ul>
  )
}

function LagItem({ cluster: c }: { cluster: { name: string; state: string; since: string; lag: number } }) {
  const since = useAge(c.since)
  const tone = toneOfCluster(c)
  return (
    <li className="lag-item">
      <Tooltip text={t(tone === "unknown" ? "layout.lagUnknown" : "layout.lagBehind", { name: c.name, since })}>
        <Link
          href={clusterLink(c.name)}
          className="lag-link"
          aria-label={t(tone === "unknown" ? "layout.lagUnknown" : "layout.lagBehind", { name: c.name, since })}
        >
          <Dot tone={tone} />
          <span>{c.name}</span>
          <span className="muted">{since}</span>
        </Link>
      </Tooltip>
    </li>
  )
}
