import { useMemo, useState } from "react"
import { useLocation } from "wouter"
import type { Edit } from "../hub/apply"
import { own, type StatusError } from "../hub/client"
import { useDraft } from "../hub/draft"
import { isObject, text } from "../hub/fields"
import { findKind, pathOf, useFleetKinds, useHubKinds } from "../hub/kinds"
import { groupOf, objectLink, type Ref } from "../hub/link"
import { useFleet } from "../hub/live"
import { Part } from "../part/Boundary"
import { Button } from "../part/Button"
import { later } from "../part/later"
import { Notice, Skeleton } from "../part/Notice"
import { Page } from "../part/Page"
import { Select } from "../part/Select"
import { t } from "../text/text"
import { read } from "./merge"
import { Save } from "./Save"
import { useSchema } from "./Yaml"

const Editor = later(() => import("./Editor"), 12)

const start = (apiVersion: string, kind: string, namespace: string) =>
  `apiVersion: ${apiVersion}\nkind: ${kind}\nmetadata:\n  name: \n${namespace ? `  namespace: ${namespace}\n` : ""}`

/** The page that creates an object from YAML, at the hub or in a cluster. */
export default function New({ cluster: first, kind: name, namespace }: { cluster: string; kind: string; namespace: string }) {
  const [cluster, setCluster] = useState(first)
  const { clusters } = useFleet()
  const [hub, fleet] = [useHubKinds(), useFleetKinds()]
  const kinds = cluster ? fleet : hub
  const [written, setWritten] = useDraft<string>(`new ${first} ${name} ${namespace}`)
  const [saving, setSaving] = useState<{ edit: Edit; of: Ref }>()
  const [refusal, setRefusal] = useState<StatusError>()
  const [, go] = useLocation()
  const given = kinds && name ? findKind(kinds, name) : undefined
  const version = given ? (given.group ? `${given.group}/${given.version}` : given.version) : "v1"
  const source = written ?? start(version, given?.kind ?? "ConfigMap", given && !given.namespaced ? "" : namespace || "default")
  const { object, problems } = useMemo(() => read(source), [source])
  const [apiVersion, wanted] = [text(object, "apiVersion"), text(object, "kind")]
  const kind = useMemo(() => {
    const found = kinds?.find((k) => k.kind === wanted && k.group === groupOf(apiVersion))
    return found && { ...found, version: apiVersion.split("/").at(-1) ?? "" }
  }, [kinds, wanted, apiVersion])
  const known = useSchema(cluster, kind)
  const metadata = isObject(object?.metadata) ? object.metadata : {}
  const problem =
    problems[0]?.message ?? (kinds && !kind ? t("object.unknownKind", { kind: wanted, version: apiVersion }) : text(metadata, "name") ? "" : t("object.noName"))
  const write = (next?: string) => {
    setWritten(next)
    setRefusal(undefined)
  }
  const review = () => {
    if (!kind || problem) return
    const inside = kind.namespaced ? text(metadata, "namespace") || namespace || "default" : ""
    const of = { cluster, kind: kind.kind, group: kind.group, namespace: inside, name: text(metadata, "name") }
    setSaving({ of, edit: { path: own(cluster) + pathOf(kind, of.namespace, of.name), text: source } })
  }
  return (
    <Page title={t("object.new")}>
      <div className="row">
        <Select
          label={t("object.where")}
          value={cluster}
          onChange={setCluster}
          options={[
            { value: "", label: t("object.atHub") },
            ...[...new Set([...(first ? [first] : []), ...clusters.map((c) => c.name)])].map((value) => ({ value, label: value })),
          ]}
        />
        <Button look="main" disabled={problem !== ""} onClick={review}>
          {t("object.review")}
        </Button>
        <Button disabled={written === undefined} onClick={() => write()}>
          {t("object.discard")}
        </Button>
        <span className="muted">{cluster ? t("object.newInCluster") : t("object.newAtHub")}</span>
      </div>
      {problem && written !== undefined && <Notice tone="warn">{problem}</Notice>}
      <div className="editor-frame">
        {kinds ? (
          <Part>
            <Editor label={t("object.new")} text={source} known={known} onChange={write} onSave={review} refusal={refusal} />
          </Part>
        ) : (
          <Skeleton lines={12} />
        )}
      </div>
      {saving && (
        <Save
          of={saving.of}
          edit={saving.edit}
          title={t("object.newTitle", { name: saving.of.name })}
          onClose={(_, why) => {
            setSaving(undefined)
            setRefusal(why)
          }}
          onSaved={() => {
            setWritten(undefined)
            go(objectLink(saving.of))
          }}
        />
      )}
    </Page>
  )
}
