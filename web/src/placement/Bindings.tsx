import { useState } from "react"
import { Link, useLocation } from "wouter"
import { useAnswer } from "../hub/answer"
import type { Obj } from "../hub/client"
import { groupOf, objectLink, placementsLink, whyLink } from "../hub/link"
import { useActions } from "../palette/actions"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { useAddress } from "../part/address"
import { Filter } from "../part/Filter"
import { hasWords } from "../part/filter"
import { Mark, toneOf } from "../part/Mark"
import { Empty } from "../part/Notice"
import { Page, SmallTable } from "../part/Page"
import { policyLink } from "../policy/link"
import { t } from "../text/text"
import { bindings } from "./bindings"

interface Condition {
  type: string
  status: string
  reason?: string
  message?: string
}

const shown = 500
const keyOf = (b: Obj) => b.metadata.uid ?? `${b.metadata.namespace ?? ""}/${b.metadata.name}`

/** The bindings that the user may list, those with problems first. */
export function Bindings() {
  const answer = useAnswer(async (signal) => (await bindings(undefined, signal, shown)) ?? "refused", "bindings", 5_000)
  const nothing = answer.data === "refused"
  const data = answer.data === "refused" ? undefined : answer.data
  const [params, set] = useAddress()
  const words = params.get("q") ?? ""
  const found = (data?.items ?? []).filter((b) => hasWords(words, textsOf(b)))
  return (
    <Page title={t("placement.title")} about={t("placement.about")}>
      <Answered answer={answer} />
      {nothing && <Empty title={t("placement.refused")}>{t("placement.refusedMore")}</Empty>}
      {data && data.items.length === 0 && <Empty title={t("placement.nothing")}>{t("placement.nothingMore")}</Empty>}
      {data && data.items.length > 0 && <Filter label={t("placement.filter")} value={words} onChange={(q) => set("q", q)} />}
      {data && data.items.length > 0 && found.length === 0 && <Empty title={t("placement.noneMatch")} />}
      {found.length > 0 && <Table bindings={found} />}
      {data?.more && <p className="muted">{t("placement.cut", { n: data.items.length })}</p>}
    </Page>
  )
}

/**
 * The condition that describes a binding's state: the first that is False, else the first that is
 * Unknown.
 */
function worst(b: Obj): Condition | undefined {
  const all: Condition[] = b.status?.conditions ?? []
  const order = ["Scheduled", "FullyApplied", "Healthy"].flatMap((type) => all.filter((c) => c.type === type))
  return order.find((c) => c.status === "False") ?? order.find((c) => c.status === "Unknown") ?? order.at(-1)
}

const textsOf = (b: Obj) => [`${b.metadata.namespace ?? ""}/${b.spec.resource.name}`, b.spec.resource.kind, worst(b)?.reason, b.spec.policyRef.name]

const rank = (b: Obj) => ["False", "Unknown", undefined, "True"].indexOf(worst(b)?.status)

function Table({ bindings }: { bindings: Obj[] }) {
  const [, navigate] = useLocation()
  const [chosen, setChosen] = useState<string>()
  const of = bindings.find((b) => keyOf(b) === chosen)
  useActions(() => {
    if (!of) return []
    const { apiVersion, kind, name } = of.spec.resource
    const { namespace = "" } = of.metadata
    const ref = { cluster: "", kind, group: groupOf(apiVersion), namespace, name }
    const section = `${kind}/${name}`
    return [
      { id: "object.why", keys: "w", title: t("object.why"), section, run: () => navigate(whyLink(ref)) },
      { id: "object.placements", keys: "p", title: t("object.placements"), section, run: () => navigate(placementsLink(ref)) },
      { id: "object.template", keys: "d", title: t("placement.template"), section, run: () => navigate(objectLink(ref)) },
      { id: "object.policy", title: t("placement.policy"), section, run: () => navigate(policyLink({ ...of.spec.policyRef, namespace })) },
    ]
  }, [chosen, of === undefined])
  const sorted = [...bindings].sort(
    (a, b) => rank(a) - rank(b) || (a.metadata.namespace ?? "").localeCompare(b.metadata.namespace ?? "") || a.metadata.name.localeCompare(b.metadata.name),
  )
  return (
    <SmallTable
      label={t("placement.title")}
      onRow={setChosen}
      head={(["object.title", "common.kind", "common.namespace", "object.state", "object.clusters", "placement.policy", "common.age"] as const).map((key) =>
        t(key),
      )}
      rows={sorted.map((b) => {
        const { apiVersion, kind, name } = b.spec.resource
        const { namespace = "" } = b.metadata
        const is = worst(b)
        const counts = b.status?.counts
        const waits = is?.reason === "Progressing" || is?.reason === "Applying"
        return {
          key: keyOf(b),
          cells: [
            <Link key="name" href={placementsLink({ kind, group: groupOf(apiVersion), namespace, name })}>
              {name}
            </Link>,
            kind,
            namespace,
            <span key="state" title={is?.message}>
              <Mark tone={waits ? "warn" : toneOf(is?.status ?? "")}>
                {is?.reason === "CannotJudge" ? t("placement.CannotJudge") : (is?.reason ?? t("common.unknown"))}
              </Mark>
            </span>,
            counts ? t("placement.appliedIn", { applied: counts.applied ?? 0, total: counts.total }) : "",
            <Link key="policy" href={policyLink({ ...b.spec.policyRef, namespace })}>
              {b.spec.policyRef.name}
            </Link>,
            <Age key="age" since={b.metadata.creationTimestamp} />,
          ],
        }
      })}
    />
  )
}
