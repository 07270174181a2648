import { type ReactNode, useEffect, useRef, useState } from "react"
import { Link, useLocation, useSearchParams } from "wouter"
import { reaching, useCan } from "../hub/access"
import { useGet } from "../hub/answer"
import { encode, mirrored, type Obj, own } from "../hub/client"
import { freshnessIn } from "../hub/freshness"
import { findKind, type Kind, pathOf, useFleetKinds, useHubKinds } from "../hub/kinds"
import { clusterLink, objectLink, ofRef, parseOf, placementsLink, type Ref, tableLink, whyLink } from "../hub/link"
import { useFleet, useWindow } from "../hub/live"
import { useActions } from "../palette/actions"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { Part } from "../part/Boundary"
import { Button } from "../part/Button"
import { Icon } from "../part/Icon"
import { later } from "../part/later"
import { Badge, Mark } from "../part/Mark"
import { Menu, MenuItem } from "../part/Menu"
import { Empty, Notice, Skeleton } from "../part/Notice"
import { Page } from "../part/Page"
import { Tabs } from "../part/Tabs"
import { type Key, t } from "../text/text"
import { type Act, actsOf, Doing } from "./acts"
import { Events } from "./Events"
import "./object.css"
import { Overview } from "./Overview"
import { missingKind, type Printed, plain, podsOf, staleSince, stateOf } from "./object"

const Yaml = later(() => import("./Yaml"))
const New = later(() => import("./New"), 6, "page")
const Relations = later(() => import("../graph/Relations"))
const Logs = later(() => import("../logs/Logs"))
const Shell = later(() => import("../shell/Shell"))
const History = later(() => import("../history/History"))
const Deleted = later(() => import("../history/Deleted"))

/** One object (of=), the deleted objects of a kind (deleted=), or the form for a new object. */
export default function ObjectPage() {
  const [params] = useSearchParams()
  const cluster = params.get("cluster") ?? ""
  const of = params.get("of")
  const namespace = params.get("namespace") ?? ""
  if (of !== null) {
    const ref = parseOf(of, cluster)
    if (ref) return <Known key={`${cluster} ${of}`} of={ref} />
    return (
      <Page title={t("object.title")}>
        <Empty title={t("object.badAddress")}>{t("object.badAddressMore")}</Empty>
      </Page>
    )
  }
  const deleted = params.get("deleted")
  if (deleted !== null) return <DeletedPage name={deleted} cluster={cluster} namespace={namespace} />
  return <New cluster={cluster} kind={params.get("kind") ?? ""} namespace={namespace} />
}

function DeletedPage({ name, cluster, namespace }: { name: string; cluster: string; namespace: string }) {
  const kinds = useFleetKinds()
  const kind = kinds && findKind(kinds, name)
  return (
    <Page title={t("object.deletedOf", { kind: kind?.kind ?? name })} about={[cluster, namespace].filter(Boolean).join(" · ")}>
      {!kinds && <Skeleton lines={6} />}
      {kinds && !kind && <Empty title={t("object.noKind", { kind: name })} />}
      {kind && (
        <Part>
          <Deleted kind={kind} cluster={cluster} namespace={namespace} />
        </Part>
      )}
    </Page>
  )
}

function Known({ of }: { of: Ref }) {
  const [hub, fleet] = [useHubKinds(), useFleetKinds()]
  const kinds = of.cluster ? fleet : hub
  const kind = kinds?.find((k) => k.kind === of.kind && k.group === of.group)
  if (kind) return <One of={of} kind={kind} inFleet={fleet?.some((k) => k.kind === of.kind && k.group === of.group) ?? false} />
  const none = <Empty title={t("object.noKind", { kind: of.kind })}>{t(missingKind(of.cluster))}</Empty>
  return <Page title={of.name}>{kinds ? none : <Skeleton lines={6} />}</Page>
}

/**
 * Returns the object's row in the mirror, and calls changed when one of its cells changes.
 * Changes without a cell appear when the object is read again.
 */
function useRow(of: Ref, kind: Kind, loading: boolean, changed: () => void): Printed | undefined {
  const list = of.cluster && `/clusters/${encodeURIComponent(of.cluster)}${pathOf(kind, of.namespace)}`
  const { state, since, columns, rows } = useWindow(list || undefined, encode({ fieldSelector: `metadata.name=${of.name}` }), 0, 1)
  const seen = useRef(0)
  useEffect(() => {
    if (state !== "live" || loading || since <= seen.current) return
    if (seen.current) changed()
    seen.current = since
  }, [state, since, loading, changed])
  const row = rows.find((r) => r.name === of.name)
  return row && { columns, cells: row.cells }
}

function One({ of, kind, inFleet }: { of: Ref; kind: Kind; inFleet: boolean }) {
  const [params, setParams] = useSearchParams()
  const [, navigate] = useLocation()
  const [act, setAct] = useState<Act>()
  const path = pathOf(kind, of.namespace, of.name)
  const target = own(of.cluster) + path
  const answer = useGet<Obj>((of.cluster ? mirrored(of.cluster) : "") + path, undefined, 5000)
  const { data: object, error, loading, reload } = answer
  const printed = useRow(of, kind, loading, reload)
  const proxy = useCan(of.cluster ? reaching(of.cluster, "patch") : undefined)
  const reached = useCan(of.cluster ? reaching(of.cluster, "get") : undefined)
  const update = useCan(of.cluster ? undefined : { verb: "patch", group: kind.group, resource: kind.resource, namespace: of.namespace, name: of.name })
  const mayWrite = of.cluster ? proxy : update
  const go = (tab: string, more: Record<string, string> = {}) => setParams({ ...(of.cluster ? { cluster: of.cluster } : {}), of: ofRef(of), tab, ...more })
  const gone = error?.code === 404
  const pods = object && podsOf(object) !== undefined && (of.cluster !== "" || kind.kind !== "Pod") && (of.cluster === "" || reached !== false)
  const tab = params.get("tab") ?? (gone ? "history" : "overview")
  const tabs = tabsOf({
    of,
    kind,
    object,
    inFleet,
    pods: pods ?? false,
    mayWrite,
    mayReach: of.cluster === "" || reached,
    container: params.get("container") ?? "",
    go,
    reload,
  })
  const shown = tabs.some((one) => one.value === tab) ? tab : (tabs[0]?.value ?? "")
  const acts = object && mayWrite && !object.metadata.deletionTimestamp ? actsOf(object) : []
  useActions(() => {
    const section = `${kind.kind}/${of.name}`
    const toTab = tabs.map((one) => ({
      id: `object.${one.value}`,
      title: t(`object.${one.value}` as Key),
      keys: keyOf[one.value],
      section,
      run: () => go(one.value),
    }))
    const edit = tabs.some((one) => one.value === "yaml") ? [{ id: "object.edit", title: t("object.edit"), keys: "e", section, run: () => go("yaml") }] : []
    const toAct = acts.map((one) => ({
      id: `object.${one}`,
      title: t(`object.${one}` as Key),
      keys: keyOf[one],
      section,
      run: () => setAct(one),
    }))
    const to = (id: string, title: string, href: string, keys?: string) => ({ id: `object.${id}`, title, keys, section, run: () => navigate(href) })
    const template = !of.cluster || (object && templateOf(object)) ? { ...of, cluster: "" } : undefined
    const toPage = [
      ...(template ? [to("placements", t("object.placements"), placementsLink(template), "p"), to("why", t("object.why"), whyLink(template), "w")] : []),
      ...(template && of.cluster ? [to("template", t("object.copyOf"), objectLink(template))] : []),
      to("deleted", t("object.deletedOf", { kind: kind.kind }), otherLink("deleted", of, kind)),
      to("new", t("object.newOf", { kind: kind.kind }), otherLink("kind", of, kind)),
    ]
    return [...toTab, ...edit, ...toAct, ...toPage]
  }, [of, object !== undefined, tabs.map((one) => one.value).join(), acts.join(), params])
  return (
    <Page
      title={`${kind.kind} ${of.name}`}
      heading={of.name}
      about={<About of={of} kind={kind} object={object} printed={printed} />}
      actions={object && <Buttons of={of} kind={kind} acts={acts} mayWrite={mayWrite === true} onAct={setAct} go={go} />}
    >
      {gone && (
        <Notice tone="warn" title={t("object.gone")}>
          {t("object.goneMore")}
        </Notice>
      )}
      {!gone && <Answered answer={answer} lines={8} />}
      {(object || gone) && (
        <Tabs
          label={t("object.title")}
          value={shown}
          onChange={(value) => go(value)}
          tabs={tabs.map((one) => ({
            ...one,
            label: t(`object.${one.value}` as Key),
            content: <Part>{one.content}</Part>,
          }))}
        />
      )}
      {act && object && (
        <Doing
          act={act}
          of={of}
          path={target}
          object={object}
          onClose={() => setAct(undefined)}
          onDone={() => {
            setAct(undefined)
            reload()
            if (act === "delete") navigate(tableLink(kind, { cluster: of.cluster, namespace: of.namespace }))
          }}
        />
      )}
    </Page>
  )
}

const keyOf: Record<string, string> = {
  overview: "d",
  yaml: "y",
  events: "v",
  relations: "r",
  logs: "l",
  shell: "s",
  history: "h",
  scale: "S",
  restart: "R",
  delete: "ctrl+d",
}

type TabsOf = {
  of: Ref
  kind: Kind
  object?: Obj
  inFleet: boolean
  pods: boolean
  mayWrite?: boolean
  mayReach?: boolean
  container: string
  go: (tab: string, more?: Record<string, string>) => void
  reload: () => void
}

function tabsOf({ of, kind, object, inFleet, pods, mayWrite, mayReach, container, go, reload }: TabsOf): { value: string; content: ReactNode }[] {
  const history = inFleet ? [{ value: "history", content: <History of={of} kind={kind} mayWrite={mayWrite === true} onSaved={reload} /> }] : []
  if (!object) return history
  return [
    {
      value: "overview",
      content: (
        <LastKnown of={of} object={object}>
          <Overview of={of} kind={kind} object={object} mayReach={mayReach} go={go} />
        </LastKnown>
      ),
    },
    { value: "yaml", content: <Yaml of={of} kind={kind} mirror={plain(object)} mayWrite={mayWrite} onSaved={reload} /> },
    { value: "events", content: <Events of={of} object={object} /> },
    ...(inFleet ? [{ value: "relations", content: <Relations of={of} /> }] : []),
    ...(pods
      ? [
          { value: "logs", content: <Logs of={of} object={object} container={container} /> },
          { value: "shell", content: <Shell of={of} object={object} container={container} /> },
        ]
      : []),
    ...history,
  ]
}

/** States from a cluster that does not answer are dimmed: they are the last known ones. */
function LastKnown({ of, object, children }: { of: Ref; object: Obj; children: ReactNode }) {
  const is = freshnessIn(useFleet(), of.cluster, staleSince(object))
  return <div className={is.state === "current" ? undefined : "last-known"}>{children}</div>
}

function About({ of, kind, object, printed }: { of: Ref; kind: Kind; object?: Obj; printed?: Printed }) {
  const state = object && stateOf(object, printed)
  const is = freshnessIn(useFleet(), of.cluster, object && staleSince(object))
  const old = object && is.state !== "current"
  const template = object && of.cluster ? templateOf(object) : false
  return (
    <span className="row">
      <span>{kind.of}</span>
      {of.cluster ? (
        <Link className="link" href={clusterLink(of.cluster)}>
          {of.cluster}
        </Link>
      ) : (
        <Badge>{t("common.hub")}</Badge>
      )}
      {of.namespace && <span>{of.namespace}</span>}
      {state && (
        <span className={old ? "last-known" : undefined} title={state.message || undefined}>
          <Mark tone={state.tone}>{state.word}</Mark>
        </span>
      )}
      {object?.metadata.deletionTimestamp && (
        <Mark tone="warn">
          {t("object.deleting")} <Age since={object.metadata.deletionTimestamp} />
          {object.metadata.finalizers?.length ? ` · ${t("object.deletingWaits", { names: object.metadata.finalizers.join(", ") })}` : null}
        </Mark>
      )}
      {old && (
        <Mark tone="unknown">
          {t("object.stale")} {is.since ? <Age since={is.since} /> : t("common.unknown")}
        </Mark>
      )}
      {template && (
        <Link className="link" href={objectLink({ ...of, cluster: "" })}>
          {t("object.copyOf")}
        </Link>
      )}
    </span>
  )
}

/** A copy of a template has an annotation of its hub. */
const templateOf = (object: Obj): boolean => Object.keys(object.metadata.annotations ?? {}).some((key) => key === "work.orrery.dev/source")

/**
 * Links to the deleted objects of the same kind, cluster and namespace, and to the page for a new
 * one.
 */
const otherLink = (what: "deleted" | "kind", of: Ref, kind: Kind) =>
  `/object?${new URLSearchParams({ [what]: kind.of, cluster: of.cluster, namespace: of.namespace })}`

type ButtonsProps = { of: Ref; kind: Kind; acts: Act[]; mayWrite: boolean; onAct: (act: Act) => void; go: (tab: string) => void }

function Buttons({ of, kind, acts, mayWrite, onAct, go }: ButtonsProps) {
  const [, navigate] = useLocation()
  return (
    <>
      {!of.cluster && (
        <>
          <Button look="quiet" onClick={() => navigate(placementsLink(of))}>
            {t("object.placements")}
          </Button>
          <Button look="quiet" onClick={() => navigate(whyLink(of))}>
            {t("object.why")}
          </Button>
        </>
      )}
      {mayWrite && (
        <Button onClick={() => go("yaml")}>
          <Icon name="edit" />
          {t("object.edit")}
        </Button>
      )}
      <Menu
        trigger={
          <Button aria-label={t("common.more")} className="icon">
            <Icon name="more" />
          </Button>
        }
      >
        {acts.map((act) => (
          <MenuItem key={act} keys={keyOf[act]} danger={act === "delete"} onSelect={() => onAct(act)}>
            {t(`object.${act}` as Key)}
          </MenuItem>
        ))}
        <MenuItem onSelect={() => navigate(otherLink("deleted", of, kind))}>{t("object.deletedOf", { kind: kind.kind })}</MenuItem>
        <MenuItem onSelect={() => navigate(otherLink("kind", of, kind))}>{t("object.newOf", { kind: kind.kind })}</MenuItem>
      </Menu>
    </>
  )
}
