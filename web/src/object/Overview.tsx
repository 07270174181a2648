import { type ReactNode, useState } from "react"
import { Link } from "wouter"
import { useAnswer, useGet } from "../hub/answer"
import { get, type List, mirrored, type Obj, own, table } from "../hub/client"
import { isObject, type JsonObject, list, text } from "../hub/fields"
import { type Kind, pathOf } from "../hub/kinds"
import { clusterLink, groupOf, objectLink, type Ref, tableLink } from "../hub/link"
import { ownPage } from "../own/pages"
import { Age } from "../part/Age"
import { Part } from "../part/Boundary"
import { Button } from "../part/Button"
import { Value } from "../part/FieldDiff"
import { Badge, Mark, toneOf } from "../part/Mark"
import { Meter } from "../part/Meter"
import { Failure } from "../part/Notice"
import { Facts, Section, SmallTable } from "../part/Page"
import { staleColumn } from "../table/columns"
import { t } from "../text/text"
import { Conditions } from "./Conditions"
import { bytesOf, containersOf, decode, podsOf, scalarsOf } from "./object"
import { useReach } from "./Reach"

type Props = { of: Ref; kind: Kind; object: Obj; mayReach?: boolean; go: (tab: string, more?: Record<string, string>) => void }

/**
 * The overview of an object: its columns, conditions and fields, and a special part for some
 * kinds.
 */
export function Overview(props: Props) {
  const { object } = props
  return (
    <div className="stack">
      <Special {...props} />
      <Conditions object={object} />
      <Columns {...props} />
      <Spec object={object} />
      <Metadata {...props} />
    </div>
  )
}

function Spec({ object }: { object: Obj }) {
  const scalars = scalarsOf(object.spec)
  if (scalars.length === 0) return null
  return (
    <Section title={t("object.spec")}>
      <Facts facts={scalars.map(([name, value]) => [name, <Value key={name} value={value} />])} />
    </Section>
  )
}

function Special(props: Props) {
  const { object } = props
  const Own = ownPage(object)
  if (Own) {
    return (
      <Part>
        <Own object={object} cluster={props.of.cluster} />
      </Part>
    )
  }
  const core = groupOf(object.apiVersion) === ""
  if (core && object.kind === "Pod") return <Pod {...props} />
  if (core && object.kind === "Node") return <Node {...props} />
  if (core && object.kind === "Service") return <Service {...props} />
  if (core && object.kind === "Secret") return <SecretData {...props} />
  if (core && object.kind === "ConfigMap") return <ConfigData object={object} />
  if (object.spec?.template?.spec?.containers) return <Workload {...props} />
  return null
}

/** The columns that kubectl would print, including the wide ones. */
function Columns({ of, kind, object }: Props) {
  const path = (of.cluster ? mirrored(of.cluster) : "") + pathOf(kind, of.namespace, of.name)
  const { data } = useAnswer((signal) => table(path, undefined, signal), `columns ${path} ${object.metadata.resourceVersion}`)
  const cells = data?.rows[0]?.cells
  if (!data || !cells) return null
  const stale = staleColumn(data.columnDefinitions)
  const facts = data.columnDefinitions.flatMap((column, i): [string, ReactNode][] => {
    const word = String(cells[i] ?? "")
    if (["Name", "Age", "Namespace", "Cluster", "Labels"].includes(column.name) || i === stale || /^(<(none|unknown)>)?$/.test(word)) return []
    const tone = toneOf(word)
    const shown = (
      <span key={column.name} className="selectable" title={column.description}>
        {word}
      </span>
    )
    return [
      [
        column.name,
        tone === "plain" ? (
          shown
        ) : (
          <Mark key={word} tone={tone}>
            {shown}
          </Mark>
        ),
      ],
    ]
  })
  if (facts.length === 0) return null
  return (
    <Section title={t("object.summary")}>
      <Facts facts={facts} />
    </Section>
  )
}

function Metadata({ of, object }: Props) {
  const { labels = {}, annotations = {}, ownerReferences = [], finalizers = [], uid, resourceVersion, generation, creationTimestamp } = object.metadata
  const shown = Object.entries(annotations).filter(
    ([key]) => !key.startsWith("fleet.orrery.dev/") && key !== "kubectl.kubernetes.io/last-applied-configuration",
  )
  const facts: [string, ReactNode][] = [
    [t("object.created"), <Age key="created" since={creationTimestamp} />],
    ["UID", <code key="uid">{uid}</code>],
    [t("object.version"), <code key="version">{generation ? `${resourceVersion} (${generation})` : resourceVersion}</code>],
  ]
  if (ownerReferences.length > 0)
    facts.push([
      t("object.owners"),
      <ul key="owners">
        {ownerReferences.map((owner) => (
          <li key={owner.uid}>
            <Link
              className="link"
              href={objectLink({
                cluster: of.cluster,
                kind: owner.kind,
                group: groupOf(owner.apiVersion),
                namespace: of.namespace,
                name: owner.name,
              })}
            >
              {owner.kind}/{owner.name}
            </Link>
          </li>
        ))}
      </ul>,
    ])
  if (finalizers.length > 0) facts.push([t("object.finalizers"), finalizers.join(", ")])
  return (
    <Section title={t("object.metadata")}>
      <Facts facts={facts} />
      <Pairs title={t("object.labels")} pairs={Object.entries(labels)} />
      <Pairs title={t("object.annotations")} pairs={shown} />
    </Section>
  )
}

function Pairs({ title, pairs }: { title: string; pairs: [string, string][] }) {
  if (pairs.length === 0) return null
  return (
    <details open={pairs.length < 12}>
      <summary>
        {title} <Badge>{pairs.length}</Badge>
      </summary>
      <dl className="pairs">
        {pairs.map(([key, value]) => (
          <div key={key}>
            <dt>{key}</dt>
            <dd className="selectable">{String(value)}</dd>
          </div>
        ))}
      </dl>
    </details>
  )
}

function Pod({ of, object, mayReach, go }: Props) {
  const node = object.spec?.nodeName
  return (
    <Section title={t("object.containers")}>
      {node && (
        <p>
          {t("object.onNode")}{" "}
          <Link className="link" href={objectLink({ cluster: of.cluster, kind: "Node", group: "", namespace: "", name: node })}>
            {node}
          </Link>
        </p>
      )}
      <SmallTable
        label={t("object.containers")}
        head={[t("common.name"), t("object.state"), t("object.restarts"), t("object.lastEnd"), t("object.image"), t("object.ports"), t("common.more")]}
        rows={containersOf(object).map((c) => ({
          key: c.name,
          cells: [
            <span key="name">
              {c.name} {c.init && <Badge>{t("object.init")}</Badge>}
            </span>,
            <Mark key="state" tone={c.ready === false && c.state === "Running" ? "warn" : toneOf(c.state || (c.notStarted ? "Waiting" : "Unknown"))}>
              {c.state || t(c.notStarted ? "object.notStarted" : "common.unknown")}
            </Mark>,
            c.restarts,
            c.last,
            <code key="image" className="selectable">
              {c.image}
            </code>,
            c.ports,
            mayReach && (
              <span key="go" className="row">
                <Button look="quiet" onClick={() => go("logs", { container: c.name })}>
                  {t("object.logs")}
                </Button>
                {!c.init && (
                  <Button look="quiet" onClick={() => go("shell", { container: c.name })}>
                    {t("object.shell")}
                  </Button>
                )}
              </span>
            ),
          ],
        }))}
      />
    </Section>
  )
}

function Workload({ of, kind, object, go }: Props) {
  const reach = useReach(of)
  const wanted = Number(object.spec?.replicas ?? object.status?.desiredNumberScheduled ?? 0)
  const ready = Number(object.status?.readyReplicas ?? object.status?.numberReady ?? 0)
  const images = list(object.spec, "template", "spec", "containers").map((c) => text(c, "image"))
  const selector = podsOf(object)
  return (
    <Section title={kind.kind}>
      <Meter label={t("object.ready")} value={wanted ? ready / wanted : 1} text={`${ready} / ${wanted}`} tone={ready >= wanted ? "good" : "warn"} />
      <Facts
        facts={[
          [
            t("object.image"),
            images.map((image) => (
              <code key={image} className="selectable block">
                {image}
              </code>
            )),
          ],
          ...(of.cluster || !reach ? [] : [[t("object.clusters"), reach.clusters.map((c) => <Badge key={c}>{c}</Badge>)] as [string, ReactNode]]),
        ]}
      />
      <div className="row">
        {selector && (
          <Link className="button" href={podsLink(of, selector.labels)}>
            {t("object.itsPods")}
          </Link>
        )}
        <Button onClick={() => go("logs")}>{t("object.logs")}</Button>
      </div>
    </Section>
  )
}

const podsLink = (of: Ref, labelSelector: string) =>
  tableLink("Pod", {
    cluster: of.cluster,
    namespace: of.namespace,
    q: labelSelector.includes(" ") ? "" : labelSelector.replaceAll(",", " "),
  })

function Node({ of, object }: Props) {
  const [capacity, free] = [object.status?.capacity ?? {}, object.status?.allocatable ?? {}]
  const taints = list(object.spec ?? {}, "taints").map((taint) => `${text(taint, "key")}=${text(taint, "value")}:${text(taint, "effect")}`)
  const addresses = list(object.status ?? {}, "addresses").map((a): [string, ReactNode] => [
    text(a, "type"),
    <span key="a" className="selectable">
      {text(a, "address")}
    </span>,
  ])
  return (
    <Section title={t("object.node")}>
      <Facts facts={[...addresses, [t("object.taints"), taints.length > 0 ? taints.join(", ") : t("common.none")]]} />
      <SmallTable
        label={t("object.capacity")}
        head={[t("object.resource"), t("object.capacity"), t("object.allocatable")]}
        rows={Object.keys(capacity).map((name) => ({ key: name, cells: [name, text(capacity, name), text(free, name)] }))}
      />
      <p className="row">
        <Link className="link" href={clusterLink(of.cluster)}>
          {of.cluster}
        </Link>
        <Link className="link" href={tableLink("Pod", { cluster: of.cluster, q: `node:${object.metadata.name}` })}>
          {t("object.itsPods")}
        </Link>
      </p>
    </Section>
  )
}

function Service({ of, object }: Props) {
  const path = of.cluster ? `${mirrored(of.cluster)}/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(of.namespace)}/endpointslices` : undefined
  const slices = useGet<List>(path, { labelSelector: `kubernetes.io/service-name=${of.name}` }, 10_000)
  const ends = (slices.data?.items ?? []).flatMap((slice) => list(slice as unknown as JsonObject, "endpoints"))
  return (
    <Section title={t("object.service")}>
      <Facts
        facts={[
          [t("object.type"), text(object.spec, "type")],
          ["IP", list(object.spec, "clusterIPs").join(", ") || text(object.spec, "clusterIP")],
          [
            t("object.external"),
            list(object.status ?? {}, "loadBalancer", "ingress")
              .map((i) => text(i, "ip") || text(i, "hostname"))
              .join(", ") ||
              text(object.spec, "externalName") ||
              t("common.none"),
          ],
        ]}
      />
      <SmallTable
        label={t("object.ports")}
        head={[t("common.name"), t("object.port"), t("object.target"), t("object.nodePort")]}
        rows={list(object.spec, "ports").map((p) => ({
          key: `${text(p, "port")}/${text(p, "protocol")}`,
          cells: [text(p, "name"), `${text(p, "port")}/${text(p, "protocol")}`, text(p, "targetPort"), text(p, "nodePort")],
        }))}
      />
      {slices.data && (
        <SmallTable
          label={t("object.endpoints")}
          head={[t("object.endpoint"), t("object.status"), t("object.pod")]}
          rows={ends.slice(0, 100).map((end) => ({
            key: list(end, "addresses").join(","),
            cells: [
              list(end, "addresses").join(", "),
              <Mark key="ready" tone={text(end, "conditions", "ready") === "false" ? "warn" : "good"}>
                {text(end, "conditions", "ready") === "false" ? t("object.notReady") : t("object.ready")}
              </Mark>,
              text(end, "targetRef", "kind") === "Pod" && (
                <Link
                  key="pod"
                  className="link"
                  href={objectLink({
                    cluster: of.cluster,
                    kind: "Pod",
                    group: "",
                    namespace: of.namespace,
                    name: text(end, "targetRef", "name"),
                  })}
                >
                  {text(end, "targetRef", "name")}
                </Link>
              ),
            ],
          }))}
        />
      )}
    </Section>
  )
}

/** The data of a Secret is requested only on demand, and shown key by key. */
function SecretData({ of, kind, mayReach }: Props) {
  const [asked, setAsked] = useState(false)
  const [shown, setShown] = useState<Set<string>>(new Set())
  const path = own(of.cluster) + pathOf(kind, of.namespace, of.name)
  const { data, error } = useAnswer(asked ? (signal) => get(path, undefined, signal) : undefined, `secret ${path}`)
  return (
    <Section title={t("object.data")} actions={!asked && mayReach && <Button onClick={() => setAsked(true)}>{t("object.showKeys")}</Button>}>
      {mayReach === false && <p className="muted">{t("object.readOnly")}</p>}
      {error && <Failure error={error} />}
      {data && (
        <SmallTable
          label={t("object.data")}
          head={[t("object.key"), t("object.size"), t("object.value")]}
          rows={Object.entries((data.data ?? {}) as Record<string, string>).map(([key, value]) => ({
            key,
            cells: [
              key,
              t("object.bytes", { n: bytesOf(value) }),
              shown.has(key) ? (
                <Value key="value" value={decode(value) ?? t("object.binary")} />
              ) : (
                <Button key="show" look="quiet" onClick={() => setShown(new Set([...shown, key]))}>
                  {t("object.show", { key })}
                </Button>
              ),
            ],
          }))}
        />
      )}
    </Section>
  )
}

function ConfigData({ object }: { object: Obj }) {
  const data: unknown = object.data
  const entries = isObject(data) ? Object.entries(data) : []
  if (entries.length === 0) return null
  return (
    <Section title={t("object.data")}>
      {entries.map(([key, value]) => (
        <details key={key} open={entries.length < 4}>
          <summary>{key}</summary>
          <Value value={value ?? ""} />
        </details>
      ))}
    </Section>
  )
}
