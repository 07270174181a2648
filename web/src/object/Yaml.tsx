import { useMemo, useState } from "react"
import { useUnanswered } from "../hub/access"
import { useAnswer, useGet } from "../hub/answer"
import { type Edit, json } from "../hub/apply"
import { get, mirrored, type Obj, own, type StatusError } from "../hub/client"
import { useDraft } from "../hub/draft"
import { equal, type JsonObject } from "../hub/fields"
import { editable } from "../hub/intent"
import { type Kind, pathOf } from "../hub/kinds"
import type { Ref } from "../hub/link"
import { Part } from "../part/Boundary"
import { Button } from "../part/Button"
import { later } from "../part/later"
import { Failure, Notice, Skeleton } from "../part/Notice"
import { t } from "../text/text"
import type { Known } from "./Editor"
import { read, write } from "./merge"
import { plain } from "./object"
import { Save } from "./Save"
import { type Document, schemaOf } from "./schema"

const Editor = later(() => import("./Editor"), 12)

/** The schema of a kind from the OpenAPI document of the hub or of a cluster. */
export function useSchema(cluster: string, kind: Pick<Kind, "group" | "version" | "kind"> | undefined): Known | undefined {
  const root = cluster ? mirrored(cluster) : ""
  const ask =
    kind &&
    (async (signal: AbortSignal): Promise<Known | undefined> => {
      const index = await get<{ paths: Record<string, { serverRelativeURL: string }> }>(`${root}/openapi/v3`, undefined, signal)
      const at = index.paths[kind.group ? `apis/${kind.group}/${kind.version}` : `api/${kind.version}`]
      if (!at) return undefined
      const path = at.serverRelativeURL.startsWith(root) ? at.serverRelativeURL : root + at.serverRelativeURL
      const doc = await get<Document>(path, undefined, signal)
      const schema = schemaOf(doc, kind.group, kind.version, kind.kind)
      return schema && { doc, schema }
    })
  return useAnswer(ask, JSON.stringify(["schema", root, kind?.group, kind?.version, kind?.kind])).data
}

const secrets = ["data", "stringData"]

/** The fields that the YAML of an object hides. */
export const hiddenOf = (object: Obj, shown: boolean): string[] => (object.kind === "Secret" && !shown ? secrets : [])

export function without(object: JsonObject, keys: string[]): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([key]) => !keys.includes(key)))
}

type Props = { of: Ref; kind: Kind; mirror: Obj; mayWrite?: boolean; onSaved: () => void }

/**
 * The object as YAML, to read and to edit: from its own API server or, if that cannot be asked,
 * from the mirror.
 */
export default function Yaml({ of, kind, mirror, mayWrite, onSaved }: Props) {
  const path = own(of.cluster) + pathOf(kind, of.namespace, of.name)
  const live = useGet<Obj>(mayWrite ? path : undefined, undefined, 5000)
  const unsure = useUnanswered().length > 0
  const object = live.data ?? (mayWrite === false || unsure || live.error ? mirror : undefined)
  const [draft, setDraft] = useDraft<{ text: string; base: JsonObject; shown: boolean }>(`edit ${path}`)
  const [shown, setShown] = useState(draft?.shown ?? false)
  const [saving, setSaving] = useState<Edit>()
  const [refusal, setRefusal] = useState<StatusError>()
  const known = useSchema(of.cluster, kind)
  const keep = object ? hiddenOf(object, shown) : []
  const start = useMemo(() => {
    if (!object) return undefined
    const base = editable(json(plain(object)))
    return { base, text: write(without(base, hiddenOf(object, shown))) }
  }, [object, shown])
  const dirty = draft !== undefined
  if (!object || !start) return <Skeleton lines={12} />
  const text = draft?.text ?? start.text
  const base = draft?.base ?? start.base
  const save = () => mayWrite === true && dirty && setSaving({ path, text, base, keep })
  const moved = dirty && !equal(draft.base, start.base)
  return (
    <div className="stack">
      {live.error && <Failure error={live.error} retry={live.reload} />}
      {mayWrite === false && <Notice tone="unknown" title={t("object.readOnly")} />}
      {moved && <Notice tone="warn" title={t("object.movedOn")} />}
      <div className="row">
        {mayWrite && (
          <>
            <Button look="main" disabled={!dirty || read(text).object === undefined} onClick={save}>
              {t("object.review")}
            </Button>
            <Button disabled={!dirty} onClick={() => setDraft(undefined)}>
              {t("object.discard")}
            </Button>
          </>
        )}
        {object.kind === "Secret" && (
          <Button aria-pressed={shown} disabled={dirty} onClick={() => setShown(!shown)}>
            {shown ? t("object.hideData") : t("object.showData")}
          </Button>
        )}
        <span className="muted">{t("object.editorHint")}</span>
      </div>
      <div className="editor-frame">
        <Part>
          <Editor
            label={t("object.yamlOf", { name: of.name })}
            text={text}
            known={known}
            readOnly={!mayWrite}
            onChange={(next) => {
              setDraft(next === start.text ? undefined : { text: next, base, shown })
              setRefusal(undefined)
            }}
            refusal={refusal}
            onSave={save}
          />
        </Part>
      </div>
      {saving && (
        <Save
          of={of}
          edit={saving}
          title={t("object.saveTitle", { name: of.name })}
          onClose={(edit, why) => {
            setSaving(undefined)
            setRefusal(why)
            if (edit?.base) setDraft({ text: edit.text, base: edit.base, shown })
          }}
          onSaved={() => {
            setSaving(undefined)
            setDraft(undefined)
            live.reload()
            onSaved()
          }}
        />
      )}
    </div>
  )
}
