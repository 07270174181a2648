import { useState } from "react"
import { reaching, useCan } from "../hub/access"
import { type Obj, own } from "../hub/client"
import type { Ref } from "../hub/link"
import { clusterOf, usePods } from "../logs/pods"
import { containersOf } from "../object/object"
import { Answered } from "../part/Answered"
import { Part } from "../part/Boundary"
import { Button } from "../part/Button"
import { Input } from "../part/Field"
import { later } from "../part/later"
import { Empty, Notice, Skeleton } from "../part/Notice"
import { Select } from "../part/Select"
import { t } from "../text/text"
import { execQuery } from "./exec"

const Terminal = later(() => import("./Terminal"))

/** A shell in a container of one of the object's pods. */
export default function Shell({ of, object, container }: { of: Ref; object: Obj; container: string }) {
  const answer = usePods(of, object)
  const [pod, setPod] = useState("")
  const [name, setName] = useState(container)
  const [command, setCommand] = useState("sh")
  const [opened, setOpened] = useState<{ cluster: string; path: string; query: string; round: number }>()
  const { data } = answer
  if (!data) return <Answered answer={answer} lines={4} />
  const keyOf = (p: Obj) => `${clusterOf(p, of)}/${p.metadata.name}`
  const chosen = data.items.find((p) => keyOf(p) === pod) ?? data.items[0]
  if (!chosen) return <Empty title={t("object.noPods")} />
  const containers = containersOf(chosen).filter((c) => !c.init)
  const inside = containers.find((c) => c.name === name)?.name ?? containers[0]?.name ?? ""
  const [cluster = ""] = keyOf(chosen).split("/")
  const open = () =>
    setOpened((last) => ({
      cluster,
      path: `${own(cluster)}/api/v1/namespaces/${encodeURIComponent(of.namespace)}/pods/${encodeURIComponent(chosen.metadata.name)}/exec`,
      query: execQuery(inside, command.trim().split(/\s+/)),
      round: (last?.round ?? 0) + 1,
    }))
  return (
    <div className="stack">
      <Answered answer={answer} />
      <form
        className="row"
        onSubmit={(e) => {
          e.preventDefault()
          open()
        }}
      >
        {data.items.length > 1 && (
          <Select
            label={t("object.pod")}
            value={keyOf(chosen)}
            onChange={setPod}
            options={data.items.map((p) => ({ value: keyOf(p), label: of.cluster ? p.metadata.name : keyOf(p) }))}
          />
        )}
        <Select label={t("object.container")} value={inside} onChange={setName} options={containers.map((c) => ({ value: c.name, label: c.name }))} />
        <Input className="command" aria-label={t("object.command")} value={command} onChange={(e) => setCommand(e.target.value)} />
        <Button type="submit" look="main" disabled={!command.trim() || !inside}>
          {opened ? t("object.openAgain") : t("object.open")}
        </Button>
        <span className="muted">{t("object.leaveTerminal")}</span>
      </form>
      {opened && (
        <Part>
          <Reached key={opened.round} {...opened} />
        </Part>
      )}
    </div>
  )
}

function Reached({ cluster, path, query }: { cluster: string; path: string; query: string }) {
  const reached = useCan(cluster ? reaching(cluster, "get") : undefined)
  if (cluster && reached === undefined) return <Skeleton lines={8} />
  if (cluster && !reached) return <Notice tone="warn" title={t("object.noReach", { cluster })} />
  return <Terminal path={path} query={query} />
}
