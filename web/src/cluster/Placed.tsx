import { useState } from "react"
import { Link } from "wouter"
import { useCan } from "../hub/access"
import { type Answer, useAnswer, useGet } from "../hub/answer"
import { type Counts, type List, mirrored, type Obj, type Table, table } from "../hub/client"
import { pathOf, useFleetKinds } from "../hub/kinds"
import { objectLink, tableLink } from "../hub/link"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { Mark, toneOf } from "../part/Mark"
import { Empty, Notice } from "../part/Notice"
import { SmallTable } from "../part/Page"
import { staleColumn } from "../table/columns"
import { t } from "../text/text"
import { inUse } from "./cluster"

const ours = "label:work.orrery.dev/binding"

/** The number of objects that placements created in the cluster, by kind and namespace. */
export function usePlaced(cluster: string): Answer<Counts> {
  return useGet<Counts>(`${mirrored(cluster)}/search`, { q: ours, group: "kind,namespace" }, 15_000)
}

export function Placed({ cluster }: { cluster: string }) {
  const counts = usePlaced(cluster)
  if (!counts.data) return <Answered answer={counts} lines={4} />
  if (counts.data.total === 0) return <Empty title={t("cluster.placedNone")}>{t("cluster.placedNoneMore")}</Empty>
  return (
    <div className="stack">
      <Answered answer={counts} />
      <p className="muted">{t("cluster.placedAbout")}</p>
      <SmallTable
        label={t("cluster.placed")}
        head={[t("common.kind"), t("common.namespace"), t("policy.claimed")]}
        rows={(counts.data.groups ?? []).map((g) => {
          const [kind = "", namespace = ""] = g.values
          const q = [`cluster:${cluster}`, namespace && `ns:${namespace}`, ours].filter(Boolean).join(" ")
          return {
            key: g.values.join("/"),
            cells: [
              <Link key="kind" href={tableLink(kind, { q })}>
                {kind}
              </Link>,
              namespace || t("common.none"),
              g.objects,
            ],
          }
        })}
      />
    </div>
  )
}

/** Selects pods that use a node: pods that ended are left out. */
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

/**
 * The load of the nodes: the number of pods, and what the cluster's metrics server measures, if
 * it has one.
 */
function useLoad(cluster: string, may: boolean | undefined): (node: Obj, resource: string) => string | number | undefined {
  const mayPods = useCan({ verb: "list", resource: "pods" })
  const counts = useGet<Counts>(may && mayPods ? `${mirrored(cluster)}/api/v1/pods` : undefined, { group: "node", fieldSelector: unfinished }, 10_000)
  const metrics = useFleetKinds()?.find((k) => k.group === "metrics.k8s.io" && k.resource === "nodes")
  const mayMetrics = useCan(metrics && { verb: "list", group: metrics.group, resource: metrics.resource })
  const [without, setWithout] = useState<string>()
  const measured = useGet<List>(metrics && may && mayMetrics && without !== cluster ? mirrored(cluster) + pathOf(metrics) : undefined, undefined, 15_000)
  // The cluster has no metrics server: do not ask again while the page is open.
  if (measured.error?.code === 404 && without !== cluster) setWithout(cluster)
  return ({ metadata: { name } }, resource) => {
    if (resource !== "pods") return measured.data?.items.find((m) => m.metadata.name === name)?.usage?.[resource]
    return counts.data && (counts.data.groups?.find((g) => g.values[0] === name)?.objects ?? 0)
  }
}

const resources = ["pods", "cpu", "memory"] as const

/** The nodes as kubectl prints them, with the resources that are in use. */
export function Nodes({ cluster }: { cluster: string }) {
  const may = useCan({ verb: "list", resource: "nodes" })
  const nodes = useAnswer<Table>(
    may ? (signal) => table(`${mirrored(cluster)}/api/v1/nodes`, { limit: 500, includeObject: "Object" }, signal) : undefined,
    `nodes ${cluster}`,
    10_000,
  )
  const load = useLoad(cluster, may)
  if (may === false) return <Empty title={t("cluster.nodesRefused")} />
  return <Answered answer={nodes}>{(data) => <NodeTable cluster={cluster} nodes={data} load={load} />}</Answered>
}

function NodeTable({ cluster, nodes, load }: { cluster: string; nodes: Table; load: ReturnType<typeof useLoad> }) {
  // The header of the page shows the age of the data, which is the same for all nodes.
  const stale = staleColumn(nodes.columnDefinitions)
  const columns = nodes.columnDefinitions.map((c, i) => ({ ...c, i })).filter((c) => c.priority === 0 && !["Age", "Cluster"].includes(c.name) && c.i !== stale)
  return (
    <SmallTable
      label={t("cluster.nodes")}
      head={[...columns.map((c) => c.name), ...resources.map((r) => t(`cluster.${r}`)), t("common.age")]}
      rows={nodes.rows.map((row) => {
        const { name, creationTimestamp } = row.object.metadata
        return {
          key: name,
          cells: [
            ...columns.map((c) => {
              const text = String(row.cells[c.i] ?? "")
              if (c.name === "Name") {
                return (
                  <Link key={c.name} href={objectLink({ cluster, kind: "Node", group: "", namespace: "", name })}>
                    {name}
                  </Link>
                )
              }
              return c.name === "Status" ? (
                <Mark key={c.name} tone={toneOf(text)}>
                  {text}
                </Mark>
              ) : (
                text
              )
            }),
            ...resources.map((r) => inUse(r, load(row.object as Obj, r), (row.object as Obj).status?.allocatable?.[r])),
            <Age key="age" since={creationTimestamp} />,
          ],
        }
      })}
    />
  )
}

interface Mirror {
  reachable: boolean
  lagSeconds: number
  types: {
    group: string
    version: string
    resource: string
    objects?: string
    life?: string
    reason?: string
    state: "Current" | "Reading" | "Stale"
    message?: string
    lastSeen?: string
    lagSeconds: number
  }[]
  refused?: { group: string; resource: string; reason: string }[]
  problems?: string[]
}

const stateTones = { Current: "good", Reading: "plain", Stale: "unknown" } as const
const ranks = { Stale: 0, Reading: 1, Current: 2 }

/**
 * The types that are mirrored from the cluster, stale ones first, and the types that are not,
 * with the reason.
 */
export function MirrorTab({ path }: { path: string }) {
  const mirror = useGet<Mirror>(path, undefined, 10_000)
  if (!mirror.data) return <Answered answer={mirror} />
  const { types, refused = [], problems = [] } = mirror.data
  const name = (x: { group: string; resource: string }) => (x.group ? `${x.resource}.${x.group}` : x.resource)
  return (
    <div className="stack">
      <Answered answer={mirror} />
      {problems.length > 0 && (
        <Notice tone="warn" title={t("cluster.mirrorProblems")}>
          <ul>
            {problems.map((p) => (
              <li key={p}>{p}</li>
            ))}
          </ul>
        </Notice>
      )}
      <p className="muted">{t("cluster.mirrorTypes", { n: types.length })}</p>
      <SmallTable
        label={t("cluster.mirror")}
        head={[t("object.type"), t("object.state"), t("cluster.mirrorLag"), t("cluster.mirrorWhat"), t("cluster.message")]}
        rows={[...types]
          .sort((a, b) => ranks[a.state] - ranks[b.state] || name(a).localeCompare(name(b)))
          .map((m) => ({
            key: `${m.version} ${name(m)}`,
            cells: [
              <span key="type" className="mono">
                {name(m)}
              </span>,
              <Mark key="state" tone={stateTones[m.state]}>
                {t(`cluster.mirror${m.state}`)}
              </Mark>,
              m.state === "Current" ? "" : <Age key="seen" since={m.lastSeen} />,
              m.objects || t("cluster.mirrorAll"),
              m.message ?? m.reason ?? "",
            ],
          }))}
      />
      {refused.length > 0 && (
        <details className="more">
          <summary>
            {t("cluster.mirrorRefused")} ({refused.length})
          </summary>
          <SmallTable
            label={t("cluster.mirrorRefused")}
            head={[t("object.type"), t("object.reason")]}
            rows={refused.map((r) => ({ key: name(r), cells: [name(r), r.reason] }))}
          />
        </details>
      )}
    </div>
  )
}
