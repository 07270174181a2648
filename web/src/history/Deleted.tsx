import { useState } from "react"
import { Link } from "wouter"
import { useGet } from "../hub/answer"
import { mirrored } from "../hub/client"
import { type Kind, pathOf } from "../hub/kinds"
import { objectLink } from "../hub/link"
import { Age } from "../part/Age"
import { Button } from "../part/Button"
import { Empty, Failure, Skeleton } from "../part/Notice"
import { SmallTable } from "../part/Page"
import { t } from "../text/text"
import { authors, type Change } from "./steps"

type Answer = { items: Change[]; metadata: { continue?: string } }

/** Deleted objects of a kind, the latest first, each with a link to its history. */
export default function Deleted({ kind, cluster, namespace }: { kind: Kind; cluster: string; namespace: string }) {
  const [tokens, setTokens] = useState<string[]>([""])
  const [managers, setManagers] = useState(false)
  const query = { deleted: true, limit: 100, continue: tokens[0] }
  const { data, error, reload } = useGet<Answer>(mirrored(cluster) + pathOf(kind, namespace), query)
  if (error) return <Failure error={error} retry={reload} />
  if (!data) return <Skeleton lines={6} />
  if (data.items.length === 0) return <Empty title={t("object.noDeleted")}>{t("object.noHistoryMore")}</Empty>
  const next = data.metadata.continue
  return (
    <div className="stack">
      <SmallTable
        label={t("object.deleted")}
        head={[t("common.name"), t("common.namespace"), t("common.cluster"), t("object.deletedWhen"), ...(managers ? [t("object.lastBy")] : [])]}
        rows={data.items.map((c) => ({
          key: `${c.cluster} ${c.uid}`,
          cells: [
            <Link
              key="name"
              className="link"
              href={objectLink({ cluster: c.cluster, kind: kind.kind, group: kind.group, namespace: c.namespace ?? "", name: c.name }, { tab: "history" })}
            >
              {c.name}
            </Link>,
            c.namespace,
            c.cluster,
            <Age key="when" since={c.time} />,
            ...(managers ? [authors(c)] : []),
          ],
        }))}
      />
      <div className="row">
        <Button aria-pressed={managers} onClick={() => setManagers(!managers)}>
          {t("common.managers")}
        </Button>
        {tokens.length > 1 && <Button onClick={() => setTokens(tokens.slice(1))}>{t("object.later")}</Button>}
        {next && <Button onClick={() => setTokens([next, ...tokens])}>{t("object.earlier")}</Button>}
      </div>
    </div>
  )
}
