import { type ReactNode, useEffect, useId, useState } from "react"
import { type Edit, Exists, json, type Review, review, send, theirs } from "../hub/apply"
import { type Obj, StatusError } from "../hub/client"
import { isObject, type JsonObject } from "../hub/fields"
import { type Conflict, editable } from "../hub/intent"
import { objectLink, type Ref } from "../hub/link"
import { Dialog, Foot } from "../part/Dialog"
import { Diff } from "../part/Diff"
import { Typed } from "../part/Field"
import { Value } from "../part/FieldDiff"
import { Badge } from "../part/Mark"
import { Failure, Notice, Skeleton } from "../part/Notice"
import { EditMoves } from "../policy/Moves"
import { t } from "../text/text"
import { Reach } from "./Reach"
import "./object.css"

type Props = {
  of: Ref
  edit: Edit
  title: string
  about?: ReactNode
  onSaved: (object: Obj) => void
  /**
   * Called with the edit, merged with the changes of others, and with the API server's refusal,
   * if any.
   */
  onClose: (edit?: Edit, refusal?: StatusError) => void
}

/** Previews an edit and saves it. The user chooses for each field that others own or changed. */
export function Save({ of, edit: first, title, about, onSaved, onClose }: Props) {
  const [edit, setEdit] = useState(first)
  const [found, setFound] = useState<Review>()
  const [failed, setFailed] = useState<Error>()
  const [mine, setMine] = useState<Set<string>>(new Set())
  const [busy, setBusy] = useState(false)
  const [many, setMany] = useState<boolean | undefined>(false)
  const [typed, setTyped] = useState("")
  useEffect(() => {
    const abort = new AbortController()
    setFailed(undefined)
    review(edit, abort.signal)
      .then((next) => {
        setFound(next)
        setBusy(false)
      })
      .catch((e) => {
        if (abort.signal.aborted) return
        setFailed(e)
        setBusy(false)
      })
    return () => abort.abort()
  }, [edit])

  const open = found?.conflicts.filter((c) => !mine.has(c.path)) ?? []
  const ready = found?.result && found.intent.changes && open.length === 0 && !busy && !failed && (many === false || (many && typed === of.name))
  const save = async () => {
    if (!found) return
    setBusy(true)
    try {
      onSaved(await send(found, { force: found.conflicts.length > 0 }))
    } catch (e) {
      // The object changed meanwhile: merge again, show the result, and let the user choose
      // again.
      if (e instanceof StatusError && e.conflict) {
        setMine(new Set())
        setEdit({ ...found.edit })
        return
      }
      setBusy(false)
      setFailed(e as Error)
    }
  }
  const close = () => onClose(found?.edit, found?.refusal)
  const takeTheirs = (conflict: Conflict) => {
    if (!found) return
    setBusy(true)
    setEdit(theirs(found, conflict))
  }
  return (
    <Dialog
      open
      wide
      title={title}
      onClose={close}
      foot={
        <Foot onClose={close} disabled={!ready} onClick={() => void save()}>
          {found && !found.live ? t("object.create") : t("object.save")}
        </Foot>
      }
    >
      <div className="stack">
        {about}
        <Reach of={of} />
        {failed instanceof Exists ? (
          <Notice tone="warn" title={t("object.exists")}>
            <a className="link" href={`/console${objectLink(of)}`}>
              {t("object.existsOpen")}
            </a>
          </Notice>
        ) : (
          failed && <Failure error={failed} />
        )}
        {!found && !failed && <Skeleton lines={6} />}
        {found?.result && /^(policy|cluster)\.orrery\.dev$/.test(of.group) && <EditMoves before={found.live} after={found.result} onMany={setMany} />}
        {many && <Typed name={of.name} value={typed} onChange={setTyped} />}
        {found && <Found found={found} mine={mine} onMine={(path) => setMine(new Set([...mine, path]))} onTheirs={takeTheirs} />}
      </div>
    </Dialog>
  )
}

type FoundProps = { found: Review; mine: Set<string>; onMine: (path: string) => void; onTheirs: (conflict: Conflict) => void }

function Found({ found, mine, onMine, onTheirs }: FoundProps) {
  if (!found.intent.changes) return <Notice title={t("object.nothingChanged")} />
  const [before, after] = masked(found.live && editable(json(found.live)), found.result && editable(json(found.result)))
  return (
    <>
      {found.refusal && <Refusal error={found.refusal} />}
      {found.taken.length > 0 && (
        <Notice title={t("object.merged", { n: found.taken.length })}>
          <code>{found.taken.map((d) => d.path).join("\n")}</code>
        </Notice>
      )}
      {found.intent.method === "update" && found.conflicts.length > 0 && <Notice title={t("object.byUpdate")} />}
      {found.conflicts.map((conflict) => (
        <Choose
          key={conflict.path}
          conflict={conflict}
          mine={mine.has(conflict.path)}
          onMine={() => onMine(conflict.path)}
          onTheirs={() => onTheirs(conflict)}
        />
      ))}
      {found.result && <Diff before={before} after={after} label={t("object.diff")} />}
    </>
  )
}

/** A refusal of the API server, field by field. */
export function Refusal({ error }: { error: StatusError }) {
  const causes = error.status.details?.causes?.filter((c) => c.field) ?? []
  if (error.code !== 422 || causes.length === 0) return <Failure error={error} />
  return (
    <Notice tone="bad" title={t("object.invalid")}>
      <ul className="causes">
        {causes.map((cause) => (
          <li key={`${cause.field} ${cause.message}`}>
            <code>{cause.field}</code> {cause.message}
          </li>
        ))}
      </ul>
    </Notice>
  )
}

function Choose({ conflict, mine, onMine, onTheirs }: { conflict: Conflict; mine: boolean; onMine: () => void; onTheirs: () => void }) {
  const id = useId()
  return (
    <fieldset className="choose">
      <legend>
        <code>{conflict.path}</code>{" "}
        {conflict.managers.map((by) => (
          <Badge key={by}>{by}</Badge>
        ))}
      </legend>
      <p className="muted">{conflict.meanwhile ? t("object.changedMeanwhile") : t("object.setBy")}</p>
      {conflict.meanwhile && (
        <p>
          <span className="muted">{t("object.was")}</span> <Value value={conflict.base} />
        </p>
      )}
      <div className="choice">
        <input type="radio" id={`${id}-theirs`} name={id} checked={false} onChange={onTheirs} />
        <label htmlFor={`${id}-theirs`}>{t("object.theirs")}</label>
        <Value value={conflict.live} />
      </div>
      <div className="choice">
        <input type="radio" id={`${id}-mine`} name={id} checked={mine} onChange={onMine} />
        <label htmlFor={`${id}-mine`}>{t("object.mine")}</label>
        <Value value={conflict.wanted} />
      </div>
    </fieldset>
  )
}

/** For Secrets the diff shows which data changes, without values. */
export function masked(before?: JsonObject, after?: JsonObject): [JsonObject | undefined, JsonObject | undefined] {
  if ((after ?? before)?.kind !== "Secret") return [before, after]
  const hide = (object: JsonObject | undefined, other: JsonObject | undefined, sign: string) => {
    if (!object || !isObject(object.data)) return object
    const was = isObject(other?.data) ? other.data : {}
    const data = Object.entries(object.data).map(([key, value]) => [key, was[key] === value ? "•••" : `••• (${sign})`])
    return { ...object, data: Object.fromEntries(data) }
  }
  return [hide(before, after, t("object.before")), hide(after, before, t("object.after"))]
}
