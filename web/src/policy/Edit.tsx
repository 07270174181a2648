import { useState } from "react"
import { useLocation } from "wouter"
import { useCan } from "../hub/access"
import { useGet } from "../hub/answer"
import type { Edit as Change } from "../hub/apply"
import { json } from "../hub/apply"
import type { Obj } from "../hub/client"
import { useDraft } from "../hub/draft"
import type { JsonObject } from "../hub/fields"
import { editable } from "../hub/intent"
import { Doing } from "../object/acts"
import { Conditions } from "../object/Conditions"
import { read, write } from "../object/merge"
import { Save } from "../object/Save"
import { useAddress } from "../part/address"
import { Part } from "../part/Boundary"
import { Button } from "../part/Button"
import { later } from "../part/later"
import { Notice } from "../part/Notice"
import { Absent, Page, Section } from "../part/Page"
import { Tabs } from "../part/Tabs"
import { t } from "../text/text"
import { Fields } from "./Fields"
import { parts, type Spec } from "./fields"
import { fresh, group, kinds, type PolicyKind, path, problems, text } from "./form"
import { policyLink } from "./link"
import { Preview } from "./Preview"

const Editor = later(() => import("../object/Editor"), 12)

interface Draft {
  text: string
  /** The object when the editing began; undefined for a new one. */
  base?: JsonObject
}

const identity: Spec[] = [
  { as: "text", at: ["name"], label: "common.name" },
  { as: "text", at: ["namespace"], label: "common.namespace" },
]

/** A policy as a form and as YAML: two views of one text. */
export function Edit({ kind, namespace, name }: { kind: PolicyKind; namespace: string; name: string }) {
  const live = useGet<Obj>(name ? path(kind, namespace, name) : undefined, undefined, 5_000)
  if (name && !live.data) return <Absent title={name} answer={live} gone={t("policy.gone", { name })} />
  return <Editing kind={kind} namespace={namespace} live={live.data} reload={live.reload} />
}

function Editing({ kind, namespace, live, reload }: { kind: PolicyKind; namespace: string; live?: Obj; reload: () => void }) {
  const [, go] = useLocation()
  const [params, setParam] = useAddress()
  const [draft, setDraft] = useDraft<Draft>(`policy ${kind} ${namespace} ${live?.metadata.name ?? ""}`)
  const [saving, setSaving] = useState<Change>()
  const [deleting, setDeleting] = useState(false)
  const resource = kinds[kind].plural
  const mayWrite = useCan({ verb: live ? "patch" : "create", group, resource, namespace: namespace || undefined })
  const mayDelete = useCan({ verb: "delete", group, resource, namespace: namespace || undefined })
  const base = live && editable(json(live))
  const now = draft?.text ?? write((base ?? fresh(kind, namespace)) as JsonObject)
  const { object, problems: unreadable } = read(now)
  const wrong = object ? problems(kind, object) : []
  const dirty = draft !== undefined
  const set = (next: string) => setDraft({ text: next, base: draft ? draft.base : base })
  const form = {
    object: object ?? {},
    onChange: (o: unknown) => set(write(o as JsonObject)),
    readOnly: !mayWrite,
    problems: dirty ? wrong : [],
  }
  const title = live?.metadata.name ?? (text(object, ["metadata", "name"]) || t("object.newOf", { kind }))
  const of = { cluster: "", kind, group, namespace, name: text(object, ["metadata", "name"]) }
  const moved = dirty && draft.base && JSON.stringify(draft.base) !== JSON.stringify(base)
  return (
    <Page
      title={title}
      about={`${kind}${namespace ? ` · ${namespace}` : ""}`}
      actions={
        <>
          {live && mayDelete && (
            <Button look="danger" onClick={() => setDeleting(true)}>
              {t("object.delete")}
            </Button>
          )}
          {dirty && <Button onClick={() => setDraft(undefined)}>{t("object.discard")}</Button>}
          {mayWrite && (
            <Button
              look="main"
              disabled={!dirty || !object || wrong.length > 0}
              onClick={() =>
                setSaving({
                  path: path(kind, text(object, ["metadata", "namespace"]) || namespace, of.name),
                  text: now,
                  base: draft?.base,
                })
              }
            >
              {t("policy.review")}
            </Button>
          )}
        </>
      }
    >
      {mayWrite === false && <Notice tone="unknown">{t("policy.readOnly")}</Notice>}
      {moved && <Notice tone="warn">{t("policy.moved")}</Notice>}
      {unreadable[0] && (
        <Notice tone="bad" title={t("policy.unreadable")}>
          {unreadable[0].message}
        </Notice>
      )}
      <div className="policy">
        <div className="policy-main">
          <Tabs
            label={t("policy.views")}
            value={params.get("view") ?? "form"}
            onChange={(view) => setParam("view", view === "form" ? "" : view)}
            tabs={[
              {
                value: "form",
                label: t("policy.form"),
                content: (
                  <form className="policy-form" onSubmit={(e) => e.preventDefault()}>
                    {!live && (
                      <div className="rows-fields">
                        <Fields {...form} specs={kinds[kind].namespaced ? identity : identity.slice(0, 1)} path={["metadata"]} />
                      </div>
                    )}
                    {object &&
                      parts(kind).map((part) => (
                        <Section key={part.title} title={t(part.title)}>
                          <div className="rows-fields">
                            <Fields {...form} specs={part.fields} path={["spec"]} />
                          </div>
                        </Section>
                      ))}
                  </form>
                ),
              },
              {
                value: "yaml",
                label: "YAML",
                content: (
                  <div className="policy-yaml">
                    <Part>
                      <Editor label={t("policy.yaml")} text={now} readOnly={!mayWrite} onChange={set} />
                    </Part>
                  </div>
                ),
              },
            ]}
          />
        </div>
        <aside className="policy-side stack">
          {!kinds[kind].overrides && object && <Preview kind={kind} object={object} />}
          {live && <Conditions object={live} />}
          {params.get("view") !== "yaml" && (
            <Section title="YAML">
              {/* biome-ignore lint/a11y/noNoninteractiveTabindex: users scroll it by keyboard. */}
              <pre className="policy-text selectable" tabIndex={0}>
                {now}
              </pre>
            </Section>
          )}
        </aside>
      </div>
      {saving && (
        <Save
          of={of}
          edit={saving}
          title={t("object.saveTitle", { name: of.name })}
          onClose={(edit) => {
            setSaving(undefined)
            if (edit?.base) setDraft({ text: edit.text, base: edit.base })
          }}
          onSaved={(saved) => {
            setSaving(undefined)
            setDraft(undefined)
            if (live) reload()
            else go(policyLink({ kind, namespace: saved.metadata.namespace, name: saved.metadata.name }))
          }}
        />
      )}
      {deleting && live && (
        <Doing
          act="delete"
          of={{ ...of, name: live.metadata.name }}
          path={path(kind, namespace, live.metadata.name)}
          object={live}
          onDone={() => go("/policies")}
          onClose={() => setDeleting(false)}
        />
      )}
    </Page>
  )
}
