import { Link, useSearchParams } from "wouter"
import { useAnswer } from "../hub/answer"
import { list, type Obj } from "../hub/client"
import { type Rights, scopes, somewhere, useRights, where } from "../hub/rights"
import { useActions } from "../palette/actions"
import { Age } from "../part/Age"
import { Answered } from "../part/Answered"
import { useAddress } from "../part/address"
import { Button } from "../part/Button"
import { Filter } from "../part/Filter"
import { hasWords } from "../part/filter"
import { Mark, toneOf } from "../part/Mark"
import { Menu, MenuItem } from "../part/Menu"
import { Empty } from "../part/Notice"
import { Page, SmallTable } from "../part/Page"
import { t } from "../text/text"
import { Edit } from "./Edit"
import { group, kinds, type PolicyKind, path } from "./form"
import { policyLink } from "./link"
import "../cluster/cluster.css"
import "./policy.css"

export default function PolicyPage() {
  const [params] = useSearchParams()
  const kind = params.get("kind") as PolicyKind | null
  const namespace = params.get("namespace") ?? ""
  const name = params.get("name") ?? ""
  if (kind && Object.hasOwn(kinds, kind)) return <Edit key={`${kind}/${namespace}/${name}`} kind={kind} namespace={namespace} name={name} />
  return <Policies />
}

const all = Object.keys(kinds) as PolicyKind[]
const places = (rights: Rights | undefined, kind: PolicyKind, verb: string) => where(rights, verb, group, kinds[kind].plural)

function Policies() {
  const rights = useRights()
  const [, setParams] = useSearchParams()
  const readable = all.filter((k) => somewhere(places(rights, k, "list")))
  const writable = all.filter((k) => somewhere(places(rights, k, "create")))
  const answer = useAnswer(
    rights &&
      (async (signal) => {
        const lists = readable.flatMap((kind) =>
          scopes(places(rights, kind, "list")).map(async (ns) => (await list<Obj>(path(kind, ns), { limit: 500 }, signal)).items.map((o) => ({ ...o, kind }))),
        )
        return (await Promise.all(lists)).flat() as (Obj & { kind: PolicyKind })[]
      }),
    `policies ${readable.join()} ${JSON.stringify(rights?.namespaces)}`,
    5_000,
  )
  const make = (kind: PolicyKind) => {
    const to = places(rights, kind, "create")
    setParams({ kind, ...(kinds[kind].namespaced ? { namespace: to.everywhere ? "default" : (to.namespaces[0] ?? "") } : {}) })
  }
  const [params, set] = useAddress()
  const words = params.get("q") ?? ""
  const found = (answer.data ?? []).filter((o) => hasWords(words, [o.kind, `${o.metadata.namespace ?? ""}/${o.metadata.name}`]))
  useActions(
    () => writable.map((kind) => ({ id: `policy.new.${kind}`, section: t("policy.title"), title: `${t("policy.new")}: ${kind}`, run: () => make(kind) })),
    [writable.join()],
  )
  return (
    <Page
      title={t("policy.title")}
      about={t("policy.about")}
      actions={
        writable.length > 0 && (
          <Menu trigger={<Button look="main">{t("policy.new")}</Button>}>
            {writable.map((kind) => (
              <MenuItem key={kind} onSelect={() => make(kind)}>
                {kind}
              </MenuItem>
            ))}
          </Menu>
        )
      }
    >
      <Answered answer={answer} />
      {rights && readable.length === 0 && <Empty title={t("policy.refused")}>{t("policy.refusedMore")}</Empty>}
      {answer.data && readable.length > 0 && answer.data.length === 0 && <Empty title={t("policy.none")}>{t("policy.noneMore")}</Empty>}
      {answer.data && answer.data.length > 0 && <Filter label={t("policy.filter")} value={words} onChange={(q) => set("q", q)} />}
      {answer.data && answer.data.length > 0 && found.length === 0 && <Empty title={t("policy.noneMatch")} />}
      {found.length > 0 && <Table policies={found} />}
    </Page>
  )
}

const keyOf = ({ kind, metadata }: Obj & { kind: PolicyKind }) => `${all.indexOf(kind)}/${metadata.namespace ?? ""}/${metadata.name}`

function Table({ policies }: { policies: (Obj & { kind: PolicyKind })[] }) {
  const condition = (o: Obj, type: string) =>
    (o.status?.conditions as { type: string; status: string; reason: string; message?: string }[] | undefined)?.find((c) => c.type === type)
  const mark = (o: Obj, type: string) => {
    const c = condition(o, type)
    return (
      c && (
        <span key={type} title={c.message}>
          <Mark tone={type === "Complete" && c.status === "False" ? "warn" : toneOf(c.status)}>{c.reason}</Mark>
        </span>
      )
    )
  }
  return (
    <SmallTable
      label={t("policy.title")}
      head={(
        ["common.name", "common.kind", "common.namespace", "object.ready", "policy.claimed", "policy.complete", "policy.priority", "common.age"] as const
      ).map((key) => t(key))}
      rows={[...policies]
        .sort((a, b) => keyOf(a).localeCompare(keyOf(b)))
        .map((o) => ({
          key: keyOf(o),
          cells: [
            <Link key="name" href={policyLink({ kind: o.kind, namespace: o.metadata.namespace, name: o.metadata.name })}>
              {o.metadata.name}
            </Link>,
            o.kind,
            o.metadata.namespace ?? "",
            mark(o, "Ready"),
            o.status?.claimed ?? "",
            mark(o, "Complete"),
            kinds[o.kind].overrides ? "" : (o.spec?.priority ?? 0),
            <Age key="age" since={o.metadata.creationTimestamp} />,
          ],
        }))}
    />
  )
}
