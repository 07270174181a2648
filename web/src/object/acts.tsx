import { type ReactNode, useEffect, useState } from "react"
import { type Edit, json } from "../hub/apply"
import { get, type Obj, remove } from "../hub/client"
import { isObject, type JsonObject } from "../hub/fields"
import { editable } from "../hub/intent"
import type { Ref } from "../hub/link"
import { Dialog, Foot } from "../part/Dialog"
import { Field, Input } from "../part/Field"
import { Badge } from "../part/Mark"
import { Failure, Notice, Skeleton } from "../part/Notice"
import { t } from "../text/text"
import { put, write } from "./merge"
import { useReach } from "./Reach"
import { Save } from "./Save"

export type Act = "scale" | "restart" | "delete"

/** What can be done with an object beside editing it. */
export function actsOf(object: Obj): Act[] {
  const acts: Act[] = []
  if (typeof object.spec?.replicas === "number") acts.push("scale")
  if (isObject(object.spec?.template?.metadata) && object.apiVersion.startsWith("apps/")) acts.push("restart")
  return [...acts, "delete"]
}

type Props = { of: Ref; path: string; object: Obj; onDone: () => void; onClose: () => void }

export function Doing({ act, ...props }: Props & { act: Act }) {
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
  if (wanted !== undefined) return <Changed {...props} title={title} change={(text) => put(text, [{ steps: ["spec", "replicas"], value: wanted }])} />
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

/** Any act that changes a field is an edit as those of the editor are: shown, tried, and saved by the same way. */
function Changed({ of, path, title, change, onDone, onClose }: Props & { title: string; change: (text: string) => string }) {
  const [edit, setEdit] = useState<Edit>()
  const [failed, setFailed] = useState<Error>()
  // biome-ignore lint/correctness/useExhaustiveDependencies: the change is that of the moment at which the dialog opened.
  useEffect(() => {
    const abort = new AbortController()
    get(path, undefined, abort.signal).then(
      (live) => {
        const base: JsonObject = editable(json(live))
        setEdit({ path, base, text: change(write(base)) })
      },
      (e) => !abort.signal.aborted && setFailed(e),
    )
    return () => abort.abort()
  }, [path])
  if (edit) return <Save of={of} edit={edit} title={title} onSaved={onDone} onClose={onClose} />
  return (
    <Dialog open title={title} onClose={onClose}>
      {failed ? <Failure error={failed} /> : <Skeleton lines={4} />}
    </Dialog>
  )
}

function Delete({ of, path, object, onDone, onClose }: Props) {
  const reach = useReach(of)
  const [typed, setTyped] = useState("")
  const [failed, setFailed] = useState<Error>()
  const [tried, setTried] = useState(false)
  const [busy, setBusy] = useState(false)
  useEffect(() => {
    remove(path, { dryRun: true }).then(() => setTried(true), setFailed)
  }, [path])
  const many = (reach?.clusters.length ?? 0) > 1
  const sure = tried && reach !== undefined && !busy && (!many || typed === of.name)
  const act = () => {
    setBusy(true)
    remove(path).then(onDone, (e) => {
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
        {!reach && <Skeleton lines={2} />}
        {reach && <WhatGoes of={of} clusters={reach.clusters} hidden={reach.hidden} />}
        {(object.metadata.finalizers?.length ?? 0) > 0 && (
          <Notice title={t("object.finalizersHold")}>
            <code>{object.metadata.finalizers?.join(", ")}</code>
          </Notice>
        )}
        {many && (
          <Field label={t("common.typeName", { name: of.name })}>
            {(id, about) => <Input id={id} aria-describedby={about} value={typed} onChange={(e) => setTyped(e.target.value)} />}
          </Field>
        )}
      </form>
    </Dialog>
  )
}

function WhatGoes({ of, clusters, hidden }: { of: Ref; clusters: string[]; hidden: number }): ReactNode {
  if (of.cluster) return <p>{t("object.deletesHere", { cluster: of.cluster })}</p>
  if (clusters.length === 0) return <p>{t("object.deletesHub")}</p>
  return (
    <p>
      {t("object.deletesIn", { n: clusters.length })}{" "}
      {clusters.map((name) => (
        <Badge key={name} tone="bad">
          {name}
        </Badge>
      ))}{" "}
      {hidden > 0 && t("object.goesToHidden", { n: hidden })}
    </p>
  )
}
