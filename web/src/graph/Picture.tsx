import "@xyflow/react/dist/base.css"
import { Background, Controls, Handle, type NodeProps, Position, ReactFlow, type Edge as Shown, type Node as ShownNode } from "@xyflow/react"
import { useEffect, useState } from "react"
import { Link } from "wouter"
import { Skeleton } from "../part/Notice"
import { t } from "../text/text"
import type { Graph, Node } from "./collapse"
import "./graph.css"
import { layout, type Point, size } from "./layout"
import { linkOf, nameOf } from "./Relations"

const lateMs = 5000

type Card = ShownNode<{ node: Node; root: boolean }, "card">

/** The graph as a picture. The list beside it has the same content. */
export default function Picture({ graph }: { graph: Graph }) {
  const [points, setPoints] = useState<Point[]>()
  const [broken, setBroken] = useState<Error>()
  useEffect(() => {
    setPoints(undefined)
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" })
    const stop = () => {
      clearTimeout(late)
      worker.terminate()
    }
    // A worker that cannot start may report no error: after lateMs the layout is computed here.
    const here = () => {
      stop()
      try {
        setPoints(layout(graph))
      } catch (e) {
        setBroken(e as Error)
      }
    }
    const late = window.setTimeout(here, lateMs)
    worker.onmessage = ({ data }: MessageEvent<Point[]>) => {
      stop()
      setPoints(data)
    }
    worker.onerror = here
    worker.postMessage(graph)
    return stop
  }, [graph])
  if (broken) throw broken
  if (!points) return <Skeleton lines={8} />
  const nodes = graph.nodes.map(
    (node, i): Card => ({
      id: String(i),
      type: "card",
      position: points[i] ?? { x: 0, y: 0 },
      data: { node, root: graph.roots.includes(i) },
      ...size,
    }),
  )
  const edges = graph.edges.map((e): Shown => ({ id: `${e.from} ${e.to} ${e.relation}`, source: String(e.from), target: String(e.to), label: e.relation }))
  return (
    <section className="graph" aria-label={t("object.relations")}>
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={types}
        fitView
        fitViewOptions={{ maxZoom: 1 }}
        minZoom={0.1}
        nodesDraggable={false}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        proOptions={{ hideAttribution: true }}
        preventScrolling={false}
        onlyRenderVisibleElements
      >
        <Background />
        <Controls showInteractive={false} aria-label={t("object.zoom")} />
      </ReactFlow>
    </section>
  )
}

const types = { card: CardNode }

function CardNode({ data: { node, root } }: NodeProps<Card>) {
  const href = linkOf(node)
  const where = [node.kind, node.cluster, node.namespace].filter(Boolean).join(" · ")
  return (
    <div className={`card ${node.state?.toLowerCase() ?? ""} ${root ? "root" : ""}`} title={`${where} ${nameOf(node)}`}>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      {href ? <Link href={href}>{nameOf(node)}</Link> : <span>{nameOf(node)}</span>}
      <small>
        {where}
        {node.state && ` · ${t(node.state === "Missing" ? "object.missing" : "object.unknown")}`}
      </small>
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  )
}
