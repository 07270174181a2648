import { useState } from "react"
import { useLocation } from "wouter"
import { useGet } from "../hub/answer"
import { patch, remove, type StatusError } from "../hub/client"
import { Answered } from "../part/Answered"
import { Dialog, Foot } from "../part/Dialog"
import { Typed } from "../part/Field"
import { Failure } from "../part/Notice"
import { Moves } from "../policy/Moves"
import { t } from "../text/text"
import { clusterPath } from "./api"
import { type Cluster, verdict } from "./cluster"
import { usePlaced } from "./Placed"

/**
 * Shows what happens to the objects and hosts of the cluster. If objects or hosts are lost, or
 * many replicas move, the user must type its name.
 */
export function Unjoin({ cluster, onClose }: { cluster: Cluster; onClose: () => void }) {
  const { name } = cluster.metadata
  const placed = usePlaced(name)
  const [policy, setPolicy] = useState(cluster.spec.deletionPolicy ?? "Orphan")
  const [typed, setTyped] = useState("")
  const [busy, setBusy] = useState(false)
  const [many, setMany] = useState<boolean>()
  const [error, setError] = useState<StatusError>()
  const [, go] = useLocation()
  const away = verdict(cluster).health === "unreachable"
  const undo = cluster.spec.provision?.deletionPolicy === "Delete"
  const loses = (policy === "Delete" && placed.data?.total !== 0) || undo || many
  async function leave() {
    setBusy(true)
    setError(undefined)
    try {
      if (policy !== cluster.spec.deletionPolicy) await patch(clusterPath(name), { spec: { deletionPolicy: policy } })
      await remove(clusterPath(name), cluster.metadata.uid)
      onClose()
      go("/")
    } catch (e) {
      setError(e as StatusError)
      setBusy(false)
    }
  }
  const choice = (value: "Orphan" | "Delete", title: string, about: string) => (
    <label className="option">
      <input type="radio" name="policy" checked={policy === value} onChange={() => setPolicy(value)} />
      <span>
        <strong>{title}</strong>
        <span className="muted">{about}</span>
      </span>
    </label>
  )
  return (
    <Dialog
      open
      onClose={onClose}
      title={t("cluster.unjoinTitle", { name })}
      description={placed.data ? t("cluster.unjoinPlaced", { n: placed.data.total }) : t("cluster.unjoinPlacedUnknown")}
      foot={
        <Foot onClose={onClose} look="danger" disabled={busy || many === undefined || (loses && typed !== name)} onClick={leave}>
          {t("cluster.unjoin")}
        </Foot>
      }
    >
      <fieldset className="bare" aria-label={t("cluster.placed")}>
        {choice("Orphan", t("cluster.unjoinOrphan"), t("cluster.unjoinOrphanAbout"))}
        {choice("Delete", t("cluster.unjoinDelete"), t("cluster.unjoinDeleteAbout"))}
      </fieldset>
      <Moves about={t("policy.movesFrom")} change={{ cluster: { name, leaves: true } }} onMany={setMany} />
      {away && <p>{policy === "Delete" ? t("cluster.unjoinAwayDelete") : t("cluster.unjoinAway")}</p>}
      {cluster.spec.syncMode === "Pull" && !away && <p>{t("cluster.unjoinAgent")}</p>}
      {cluster.spec.provision && <p>{undo ? t("cluster.unjoinUndo") : t("cluster.unjoinHosts")}</p>}
      {loses && <Typed name={name} value={typed} onChange={setTyped} />}
      {error && <Failure error={error} />}
    </Dialog>
  )
}

/** Unjoin for callers that know only the name of the cluster. */
export function UnjoinNamed({ name, onClose }: { name: string; onClose: () => void }) {
  const answer = useGet<Cluster>(clusterPath(name))
  if (answer.data) return <Unjoin cluster={answer.data} onClose={onClose} />
  return (
    <Dialog open onClose={onClose} title={t("cluster.unjoinTitle", { name })}>
      <Answered answer={answer} lines={4} />
    </Dialog>
  )
}
