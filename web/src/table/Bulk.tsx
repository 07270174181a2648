import { useEffect, useState } from "react"
import { UnjoinNamed } from "../cluster/Unjoin"
import { type Answer, useAnswer } from "../hub/answer"
import { fleet, get, own, patch, remove } from "../hub/client"
import { type Kind, pathOf } from "../hub/kinds"
import { groupOf, ofRef } from "../hub/link"
import type { Row } from "../hub/live"
import { copiesOf } from "../object/Reach"
import { Button } from "../part/Button"
import { Dialog, Foot } from "../part/Dialog"
import { Field, Input, Typed } from "../part/Field"
import { Badge } from "../part/Mark"
import { Failure, Notice } from "../part/Notice"
import type { Explanation } from "../placement/explained"
import { t } from "../text/text"
import { type Act, alongWith, byCluster, forEach, idOf, many, patchOf } from "./selection"

const shownOfCluster = 6
const checked = 50

async function carryOut(act: Act, row: Row, kind: Kind, replicas: number, dryRun: boolean): Promise<void> {
  const version = row.apiVersion.slice(row.apiVersion.indexOf("/") + 1)
  const path = own(row.cluster) + pathOf({ ...kind, group: groupOf(row.apiVersion), version }, row.namespace, row.name)
  if (act === "delete") await remove(path, row.uid, { dryRun })
  else await patch(path, { ...patchOf(act, new Date(), replicas), metadata: row.uid ? { uid: row.uid } : {} }, { dryRun })
}

type Result = { done: number; failed: { row: Row; error: Error }[] }
const none: Result = { done: 0, failed: [] }

type Props = { act: Act; rows: Row[]; kindOf: (row: Row) => Kind; onClose: () => void; onDone: () => void }

/**
 * The dialog for an action on rows. For a single Cluster that leaves the fleet it is the dialog
 * of the cluster's page.
 */
export default function Bulk(props: Props) {
  const [row, ...others] = props.rows
  if (props.act !== "delete" || !row || others.length > 0 || alongWith(row) !== "fleet") return <Acts {...props} />
  return <UnjoinNamed name={row.name} onClose={props.onClose} />
}

/**
 * Shows what will happen in each cluster, which clusters would refuse it (dry run), and then the
 * results.
 */
function Acts({ act, rows, kindOf, onClose, onDone }: Props) {
  const [typed, setTyped] = useState("")
  const [replicas, setReplicas] = useState("1")
  const [dry, setDry] = useState<Result>(none)
  const [real, setReal] = useState<Result>()
  const count = String(rows.length)
  const toCheck = rows.slice(0, checked)
  const copies = useCopies(act === "delete" ? toCheck : [])
  const asksTyped = act === "delete" && (rows.length > many || (copies.data?.length ?? 0) > 1 || rows.some(alongWith))

  // biome-ignore lint/correctness/useExhaustiveDependencies: the rows from when it opened.
  useEffect(() => {
    let shown = true
    void forEach(
      toCheck,
      6,
      (row) => carryOut(act, row, kindOf(row), 1, true),
      (row, error) => shown && setDry((r) => add(r, row, error)),
    )
    return () => {
      shown = false
    }
  }, [])

  const known = act !== "delete" || toCheck.every((row) => row.cluster) || copies.data !== undefined
  const valid = act !== "scale" || /^\d{1,6}$/.test(replicas)
  const finished = real && real.done + real.failed.length === rows.length
  const run = async () => {
    setReal(none)
    await forEach(
      rows,
      6,
      (row) => carryOut(act, row, kindOf(row), Number(replicas), false),
      (row, error) => setReal((r) => add(r ?? none, row, error)),
    )
    onDone()
  }
  const checking = dry.done + dry.failed.length < toCheck.length
  return (
    <Dialog
      open
      onClose={onClose}
      title={t(`table.${act}Title`, { n: rows.length })}
      description={t(act === "delete" && toCheck.every((row) => !row.cluster) ? "table.deleteHubAbout" : `table.${act}About`)}
      foot={
        real ? (
          <>
            <output>
              {finished ? t("table.done", { n: real.done }) : t("table.running", { n: real.done + real.failed.length, all: rows.length })}
              {real.failed.length > 0 && <span className="bad"> · {t("table.failed", { n: real.failed.length })}</span>}
            </output>
            <Button onClick={onClose}>{t("common.close")}</Button>
          </>
        ) : (
          <Foot
            onClose={onClose}
            look={act === "delete" ? "danger" : "main"}
            disabled={!valid || !known || (asksTyped && typed.trim() !== count)}
            onClick={() => void run()}
          >
            {t(`table.${act}`)}
          </Foot>
        )
      }
    >
      <div className="stack">
        {byCluster(rows).map(([cluster, mine]) => (
          <section key={cluster}>
            <h3>{t("table.inCluster", { cluster: cluster || t("common.hub"), n: mine.length })}</h3>
            <ul className="bulk-rows">
              {mine.slice(0, shownOfCluster).map((row) => (
                <li key={idOf(row)}>
                  <span className="muted">{row.kind}</span> {row.namespace && `${row.namespace}/`}
                  {row.name}
                </li>
              ))}
              {mine.length > shownOfCluster && <li className="muted">{t("table.andMore", { n: mine.length - shownOfCluster })}</li>}
            </ul>
          </section>
        ))}
        {copies.error && <Failure error={copies.error} retry={copies.reload} />}
        {copies.data && copies.data.length > 0 && (
          <Notice tone="warn" title={t("table.copiesGo", { n: copies.data.length })}>
            {copies.data.map((name) => (
              <Badge key={name} tone="bad">
                {name}
              </Badge>
            ))}
          </Notice>
        )}
        {act === "scale" && (
          <Field label={t("object.replicas")}>
            {(id) => <Input id={id} type="number" min={0} value={replicas} onChange={(e) => setReplicas(e.target.value)} />}
          </Field>
        )}
        {!real && checking && <p className="muted">{t("table.checking")}</p>}
        {!real && dry.failed.length > 0 && <Failures title={t("table.wouldRefuse", { n: dry.failed.length })} failed={dry.failed} />}
        {real && real.failed.length > 0 && <Failures title={t("table.failed", { n: real.failed.length })} failed={real.failed} />}
        {asksTyped && !real && <Typed name={count} value={typed} onChange={setTyped} />}
      </div>
    </Dialog>
  )
}

/**
 * The clusters that lose copies when these objects of the hub are deleted; rows in clusters have
 * none.
 */
function useCopies(rows: Row[]): Answer<string[]> {
  const ofs = rows.flatMap((row) => (row.cluster ? [] : ofRef({ ...row, group: groupOf(row.apiVersion) })))
  const ask = async (signal: AbortSignal) => {
    const explanations = await Promise.all(ofs.map((of): Promise<Explanation> => get(`${fleet}/placements`, { of }, signal)))
    return [...new Set(explanations.flatMap(copiesOf))].sort()
  }
  return useAnswer(ofs.length ? ask : undefined, JSON.stringify(["copies", ofs]))
}

const add = (r: Result, row: Row, error?: Error): Result => (error ? { ...r, failed: [...r.failed, { row, error }] } : { ...r, done: r.done + 1 })

function Failures({ title, failed }: { title: string; failed: Result["failed"] }) {
  return (
    <Notice tone="warn" title={title}>
      <ul>
        {failed.slice(0, 5).map(({ row, error }) => (
          <li key={idOf(row)} className="selectable">
            {row.cluster || t("common.hub")}: {row.name}: {error.message}
          </li>
        ))}
      </ul>
    </Notice>
  )
}
