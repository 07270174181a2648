import { type ReactNode, useEffect, useMemo, useState } from "react"
import type { Cluster } from "../cluster/cluster"
import { Unjoin } from "../cluster/Unjoin"
import { useAnswer, useGet } from "../hub/answer"
import { json } from "../hub/apply"
import { type Counts, mirrored, type Obj, remove } from "../hub/client"
import { isObject } from "../hub/fields"
import { editable } from "../hub/intent"
import { type Ref, takesAlong } from "../hub/link"
import { Answered } from "../part/Answered"
import { Dialog, Foot } from "../part/Dialog"
import { Field, Input, Typed } from "../part/Field"
import { Badge } from "../part/Mark"
import { Failure, Notice, Skeleton } from "../part/Notice"
import { bindings, clustersOf } from "../placement/bindings"
import { EditMoves } from "../policy/Moves"
import { t } from "../text/text"
import { put, write } from "./merge"
import { useReach } from "./Reach"
import { Save } from "./Save"

export type Act = "scale" | "restart" | "delete"

/** The actions on an object besides editing. */
export function actsOf(object: Obj): Act[] {
  const acts: Act[] = []
  if (typeof object.spec?.replicas === "number") acts.push("scale")
  if (isObject(object.spec?.template?.metadata) && object.apiVersion.startsWith("apps/")) acts.push("restart")
  return [...acts, "delete"]
}

type Props = { of: Ref; path: string; object: Obj; onDone: () => void; onClose: () => void }

export function Doing({ act, ...props }: Props & { act: Act }) {
  const { of, object } = props
  // A deleted Cluster leaves the fleet. The dialog for that shows the consequences.
  if (act === "delete" && takesAlong(of) === "fleet") {
    return <Unjoin cluster={object as unknown as Cluster} onClose={props.onClose} />
  }
  if (act === "delete") return <Delete {...props} />
  return act === "scale" ? <Scale {...props} /> : <Restart {...props} />
}

const restartedAt = ["spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt"]

function Restart(props: Props) {
  const [now] = useState(() => new Date().toISOString().replace(/\.\d+/, ""))
  return <Changed {...props} title={t("object.restartTitle", { name: props.of.name })} change={(text) => put(text, [{ steps: restartedAt, value: now }])} />
}

function Scale(props: Props) {
  const [wanted, setWanted] = useState<number>()
  const [typed, setTyped] = useState(String(props.object.spec?.replicas ?? ""))
  const valid = /^\d{1,6}$/.test(typed)
  const title = t("object.scaleTitle", { name: props.of.name })
  if (wanted !== undefined)
    return (
      <Changed
        {...props}
        title={title}
        about={wanted === 0 && <Notice tone="warn" title={t("object.scaleToNone")} />}
        change={(text) => put(text, [{ steps: ["spec", "replicas"], value: wanted }])}
      />
    )
  return (
    <Dialog
      open
      title={title}
      onClose={props.onClose}
      foot={
        <Foot onClose={props.onClose} disabled={!valid} onClick={() => setWanted(Number(typed))}>
          {t("object.review")}
        </Foot>
      }
    >
      <form
        onSubmit={(e) => {
          e.preventDefault()
          if (valid) setWanted(Number(typed))
        }}
      >
        <Field label={t("object.replicas")} error={valid ? undefined : t("object.notNumber")}>
          {(id, about) => <Input id={id} aria-describedby={about} inputMode="numeric" value={typed} onChange={(e) => setTyped(e.target.value)} />}
        </Field>
      </form>
    </Dialog>
  )
}

/** An action that changes a field is saved as an edit: shown, tried by a dry run, and applied. */
function Changed({ of, path, title, about, change, onDone, onClose }: Props & { title: string; about?: ReactNode; change: (text: string) => string }) {
  const answer = useGet<Obj>(path)
  const { data } = answer
  // biome-ignore lint/correctness/useExhaustiveDependencies: change is fixed by the dialog.
  const edit = useMemo(() => {
    const base = data && editable(json(data))
    return base && { path, base, text: change(write(base)) }
  }, [path, data])
  if (edit) return <Save of={of} edit={edit} title={title} about={about} onSaved={onDone} onClose={onClose} />
  return (
    <Dialog open title={title} onClose={onClose}>
      <Answered answer={answer} lines={4} />
    </Dialog>
  )
}

function Delete({ of, path, object, onDone, onClose }: Props) {
  const reach = useReach(of)
  const [typed, setTyped] = useState("")
  const [failed, setFailed] = useState<Error>()
  const [tried, setTried] = useState(false)
  const [busy, setBusy] = useState(false)
  // The UID of the object when the dialog opened: another object may get its name meanwhile.
  const [uid] = useState(object.metadata.uid)
  useEffect(() => {
    remove(path, uid, { dryRun: true }).then(() => setTried(true), setFailed)
  }, [path, uid])
  const held = useHeld(of)
  const reached: string[] = of.group === "work.orrery.dev" ? clustersOf(object as Obj) : [...(reach?.clusters ?? []), ...(held?.clusters ?? [])]
  const clusters = [...new Set(reached)].sort()
  const unknown = held?.unknown || reach?.unknown
  const [moves, setMoves] = useState<boolean | undefined>(false)
  const many = unknown || clusters.length > 1 || takesAlong(of) !== undefined || moves
  const sure = tried && reach !== undefined && held !== undefined && moves !== undefined && !busy && (!many || typed === of.name)
  const act = () => {
    setBusy(true)
    remove(path, uid).then(onDone, (e) => {
      setBusy(false)
      setFailed(e)
    })
  }
  return (
    <Dialog
      open
      title={t("object.deleteTitle", { kind: object.kind, name: of.name })}
      onClose={onClose}
      foot={
        <Foot onClose={onClose} look="danger" disabled={!sure} onClick={act}>
          {t("object.delete")}
        </Foot>
      }
    >
      <form
        className="stack"
        onSubmit={(e) => {
          e.preventDefault()
          if (sure) act()
        }}
      >
        {failed && <Failure error={failed} />}
        {!(reach && held) && <Skeleton lines={2} />}
        {reach &&
          held &&
          (unknown ? (
            <p>{t("object.deletesUnknown")}</p>
          ) : (
            <WhatGoes of={of} object={object} clusters={clusters} hidden={reach.hidden} objects={held.objects} />
          ))}
        {of.group === "policy.orrery.dev" && <EditMoves before={object} onMany={setMoves} />}
        {(object.metadata.finalizers?.length ?? 0) > 0 && (
          <Notice title={t("object.finalizersHold")}>
            <code>{object.metadata.finalizers?.join(", ")}</code>
          </Notice>
        )}
        {many && <Typed name={of.name} value={typed} onChange={setTyped} />}
      </form>
    </Dialog>
  )
}

/**
 * What is deleted along with a namespace or the definition of a kind: the number of objects and,
 * at the hub, their clusters. undefined until known.
 */
function useHeld(of: Ref): { objects?: number; clusters?: string[]; unknown?: boolean } | undefined {
  const { cluster, name } = of
  const what = takesAlong(of)
  const q = `${what === "kind" ? "kind" : "ns"}:${name}`
  const inside = useGet<Counts>(what && cluster ? `${mirrored(cluster)}/search` : undefined, { q, group: "kind" })
  const placed = useAnswer(what === "namespace" && !cluster ? (signal) => bindings(name, signal) : undefined, `held by ${name}`)
  if (!what || (!cluster && what !== "namespace")) return {}
  const { data, loading } = cluster ? inside : placed
  if (!data) return loading ? undefined : { unknown: true }
  return "total" in data ? { objects: data.total } : { objects: data.items.length, clusters: [...new Set(data.items.flatMap(clustersOf))].sort() }
}

type WhatProps = { of: Ref; object: Obj; clusters: string[]; hidden: number; objects?: number }

function WhatGoes({ of, object, clusters, hidden, objects }: WhatProps): ReactNode {
  const what = takesAlong(of)
  const about = what === "kind" ? "object.deletesKind" : "object.deletesHeld"
  const held = what && <p>{t(of.cluster ? about : `${about}Hub`, { n: objects ?? 0 })}</p>
  if (of.cluster) {
    return (
      <>
        <p>{t("object.deletesHere", { cluster: of.cluster })}</p>
        {held}
      </>
    )
  }
  if (of.group === "policy.orrery.dev") {
    return <p>{of.kind.endsWith("OverridePolicy") ? t("policy.deleteOverride") : t("policy.deleteAbout", { n: object.status?.claimed ?? 0 })}</p>
  }
  if (clusters.length === 0 && !hidden) {
    return (
      <>
        <p>{t("object.deletesHub")}</p>
        {held}
      </>
    )
  }
  const binding = object.spec?.preserveResourcesOnDeletion ? "object.deletesBindingKept" : "object.deletesBinding"
  return (
    <>
      {held}
      <p className="reach">
        {t(of.group === "work.orrery.dev" ? binding : "object.deletesIn", { n: clusters.length })}{" "}
        {clusters.map((name) => (
          <Badge key={name} tone="bad">
            {name}
          </Badge>
        ))}{" "}
        {hidden > 0 && t("object.goesToHidden", { n: hidden })}
      </p>
    </>
  )
}
