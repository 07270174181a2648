import { Link } from "wouter"
import type { Obj } from "../hub/client"
import { clusterLink } from "../hub/link"
import { Age } from "../part/Age"
import { Section, SmallTable } from "../part/Page"
import { t } from "../text/text"

interface Task {
  fromCluster: string
  replicas?: number
  reason?: string
  message?: string
  purgeMode?: "Gracefully" | "Directly" | "Never"
  creationTimestamp?: string
}

/** The eviction tasks of a binding: what leaves its clusters, and why. */
export default function Binding({ object }: { object: Obj; cluster: string }) {
  const tasks: Task[] = object.spec?.gracefulEvictionTasks ?? []
  if (tasks.length === 0) return null
  return (
    <Section title={t("own.evictions")}>
      <SmallTable
        label={t("own.evictions")}
        head={[t("common.cluster"), t("policy.replicas"), t("object.reason"), t("own.oldCopy"), t("common.age")]}
        rows={tasks.map(({ fromCluster, replicas, reason = "placedAnew", message, purgeMode = "Gracefully", creationTimestamp }) => ({
          key: fromCluster,
          cells: [
            <Link key="cluster" href={clusterLink(fromCluster)}>
              {fromCluster}
            </Link>,
            replicas,
            <span key="reason" className="selectable message">
              {reason === "placedAnew" || reason === "TaintUntolerated" ? t(`own.${reason}`) : reason} {message}
            </span>,
            t(`own.${purgeMode}`),
            <Age key="age" since={creationTimestamp} />,
          ],
        }))}
      />
    </Section>
  )
}
