import { useMemo, useState } from "react"
import { Link } from "wouter"
import { useGet } from "../hub/answer"
import { mirrored } from "../hub/client"
import { objectLink, ofRef, type Ref } from "../hub/link"
import { Answered } from "../part/Answered"
import { Part } from "../part/Boundary"
import { later } from "../part/later"
import { Badge } from "../part/Mark"
import { Empty, Notice } from "../part/Notice"
import { SmallTable } from "../part/Page"
import { Select } from "../part/Select"
import { t } from "../text/text"
import { collapse, type Graph, type Node } from "./collapse"

const Picture = later(() => import("./Picture"))

export const linkOf = (node: Node): string | undefined =>
  node.kind === "Image" || node.count || node.state
    ? undefined
    : objectLink({ cluster: node.cluster ?? "", kind: node.kind, group: node.group ?? "", namespace: node.namespace ?? "", name: node.name })

export const nameOf = (node: Node): string => (node.count ? t("object.pods", { n: node.count }) : node.name)

/** The objects that an object uses, and those that use it. */
export default function Relations({ of }: { of: Ref }) {
  const [direction, setDirection] = useState("both")
  const [depth, setDepth] = useState("2")
  const answer = useGet<Graph>(`${mirrored(of.cluster)}/graph`, { of: ofRef(of), direction, depth, limit: 1000 })
  const { data } = answer
  const small = useMemo(() => data && collapse(data), [data])
  return (
    <div className="stack">
      <div className="row">
        <Select
          label={t("object.direction")}
          value={direction}
          onChange={setDirection}
          options={[
            { value: "both", label: t("object.both") },
            { value: "uses", label: t("object.uses") },
            { value: "usedBy", label: t("object.usedBy") },
          ]}
        />
        <Select
          label={t("object.depth")}
          value={depth}
          onChange={setDepth}
          options={["1", "2", "3", "4"].map((value) => ({ value, label: t("object.steps", { n: Number(value) }) }))}
        />
      </div>
      <Answered answer={answer} lines={8} />
      {data?.cut && <Notice title={data.cut} />}
      {small && small.left > 0 && <Notice title={t("object.leftOut", { n: small.left })} />}
      {small && small.graph.edges.length === 0 && <Empty title={t("object.noRelations")} />}
      {small && small.graph.edges.length > 0 && (
        <>
          <Part>
            <Picture graph={small.graph} />
          </Part>
          <details>
            <summary>
              {t("object.asList")} <Badge>{small.graph.edges.length}</Badge>
            </summary>
            <SmallTable
              label={t("object.relations")}
              head={[t("object.title"), t("object.relation"), t("object.toObject")]}
              rows={small.graph.edges.map((e) => ({
                key: `${e.from} ${e.to} ${e.relation}`,
                cells: [<Name key="from" node={small.graph.nodes[e.from]} />, e.relation, <Name key="to" node={small.graph.nodes[e.to]} />],
              }))}
            />
          </details>
        </>
      )}
    </div>
  )
}

function Name({ node }: { node: Node | undefined }) {
  if (!node) return null
  const href = linkOf(node)
  const name = `${node.kind}/${nameOf(node)}`
  return (
    <span>
      {href ? (
        <Link className="link" href={href}>
          {name}
        </Link>
      ) : (
        name
      )}{" "}
      {node.state && <Badge tone={node.state === "Missing" ? "bad" : "unknown"}>{t(node.state === "Missing" ? "object.missing" : "object.unknown")}</Badge>}{" "}
      <span className="muted">{[node.cluster, node.namespace].filter(Boolean).join(" · ")}</span>
    </span>
  )
}
