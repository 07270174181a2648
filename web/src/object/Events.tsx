import { useGet } from "../hub/answer"
import { type List, mirrored, type Obj } from "../hub/client"
import type { Ref } from "../hub/link"
import { clean } from "../logs/clean"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { Mark } from "../part/Mark"
import { Empty } from "../part/Notice"
import { SmallTable } from "../part/Page"
import { t } from "../text/text"

const most = 200

/**
 * The latest events of an object; for an object of the hub also those of its copies in clusters.
 */
export function Events({ of, object }: { of: Ref; object: Obj }) {
  const path = of.namespace ? `/api/v1/namespaces/${encodeURIComponent(of.namespace)}/events` : "/api/v1/events"
  const uid = `involvedObject.uid=${object.metadata.uid}`
  const latest = (mirror: boolean) => ({ limit: most, orderby: mirror ? "created desc" : undefined })
  const here = useGet<List>((of.cluster ? mirrored(of.cluster) : "") + path, { fieldSelector: uid, ...latest(of.cluster !== "") }, 5000)
  const copies = `involvedObject.kind=${of.kind},involvedObject.name=${of.name}`
  const there = useGet<List>(of.cluster ? undefined : mirrored() + path, { fieldSelector: copies, ...latest(true) }, 5000)
  const events = [...(here.data?.items ?? []), ...(there.data?.items ?? [])].sort((a, b) => (lastOf(a) < lastOf(b) ? 1 : -1))
  const known = here.data && !here.error && (of.cluster || (there.data && !there.error))
  return (
    <div className="stack">
      <Answered answer={here} lines={5} />
      {!of.cluster && <Answered answer={there} lines={5} />}
      {events.length === 0 && known && <Empty title={t("object.noEvents")}>{t("object.noEventsMore")}</Empty>}
      {events.length > 0 && (
        <SmallTable
          label={t("object.events")}
          head={[t("object.last"), t("object.type"), t("object.reason"), t("object.message"), t("object.times"), t("object.from")]}
          rows={events.map((e) => ({
            key: `${clusterOf(e)} ${e.metadata.uid}`,
            cells: [
              <Age key="last" since={lastOf(e)} />,
              <Mark key="type" tone={e.type === "Warning" ? "warn" : "plain"}>
                {e.type}
              </Mark>,
              e.reason,
              <span key="message" className="selectable message">
                {clean(String(e.message ?? e.note ?? ""))}
              </span>,
              e.count ?? e.series?.count ?? 1,
              [clusterOf(e), e.source?.component || e.reportingComponent].filter(Boolean).join(" · "),
            ],
          }))}
        />
      )}
    </div>
  )
}

const clusterOf = (e: Obj): string => e.metadata.annotations?.["fleet.orrery.dev/cluster"] ?? ""
const lastOf = (e: Obj): string => e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp ?? ""
