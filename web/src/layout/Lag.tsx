import { Link } from "wouter"
import { type Freshness, freshness, lagText, toneOfFreshness } from "../hub/freshness"
import { clusterLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { useAge } from "../part/Age"
import { Dot } from "../part/Mark"
import { Tooltip } from "../part/Tooltip"
import { t } from "../text/text"

/**
 * How current the data of each cluster is: a narrow strip that names only the clusters with old
 * data.
 */
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
  const behind = clusters.map(({ name }) => ({ name, is: freshness({ clusters, connected }, name) })).filter(({ is }) => is.state !== "current")
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
        <LagItem key={c.name} {...c} />
      ))}
      {behind.length > 4 && (
        <li className="lag-item">
          <Link href="/">+{behind.length - 4}</Link>
        </li>
      )}
    </ul>
  )
}

function LagItem({ name, is }: { name: string; is: Freshness }) {
  const since = useAge(is.since)
  return (
    <li className="lag-item">
      <Tooltip text={t(lagText(is), { name, since })}>
        <Link href={clusterLink(name)} className="lag-link">
          <Dot tone={toneOfFreshness(is)} />
          <span>{name}</span>
          <span className="muted">{since}</span>
        </Link>
      </Tooltip>
    </li>
  )
}
