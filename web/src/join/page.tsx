import { useState } from "react"
import { Link } from "wouter"
import { useCluster } from "../cluster/api"
import { useCan } from "../hub/access"
import { clusterLink } from "../hub/link"
import { Button } from "../part/Button"
import { Field, Input } from "../part/Field"
import { Mark } from "../part/Mark"
import { Notice } from "../part/Notice"
import { Page, Section } from "../part/Page"
import { Select } from "../part/Select"
import { t } from "../text/text"
import { blank, command, examples, type Join, nameProblem, steps } from "./command"
import "../cluster/cluster.css"
import "./join.css"

export default function JoinPage() {
  const may = useCan({ verb: "create", group: "cluster.orrery.dev", resource: "clusters" })
  const [join, setJoin] = useState<Join>(blank)
  const set = (change: Partial<Join>) => setJoin({ ...join, ...change })
  const problem = nameProblem(join.name)
  const text = (key: keyof Join & ("image" | "namespaces" | "kubeconfig" | "labels" | "provider" | "region"), placeholder: string) => (
    <Field label={t(`join.${key}`)} hint={t(`join.${key}Hint`)}>
      {(id, about) => <Input id={id} aria-describedby={about} value={join[key]} placeholder={placeholder} onChange={(e) => set({ [key]: e.target.value })} />}
    </Field>
  )
  return (
    <Page title={t("join.title")} about={t("join.about")}>
      {may === false && (
        <Notice tone="warn" title={t("join.refused")}>
          {t("join.refusedMore")}
        </Notice>
      )}
      <div className="join">
        <form className="join-form" onSubmit={(e) => e.preventDefault()}>
          <Field label={t("join.name")} hint={t("join.nameHint")} error={join.name && problem ? t(`join.${problem}`) : undefined}>
            {(id, about) => (
              <Input id={id} aria-describedby={about} value={join.name} placeholder={examples.cluster} onChange={(e) => set({ name: e.target.value.trim() })} />
            )}
          </Field>
          <fieldset className="bare">
            <legend>{t("join.way")}</legend>
            {(["agent", "kubeconfig"] as const).map((way) => (
              <label className="option" key={way}>
                <input type="radio" name="way" checked={join.way === way} onChange={() => set({ way })} />
                <span>
                  <strong>{t(`join.${way}Way`)}</strong>
                  <span className="muted">{t(`join.${way}WayHint`)}</span>
                </span>
              </label>
            ))}
          </fieldset>
          {join.way === "agent" ? (
            <>
              {text("image", "registry.example.com/orrery-agent:v1")}
              <Field label={t("join.profile")} hint={t(`join.profile${join.profile}Hint`)}>
                {(id) => (
                  <Select
                    id={id}
                    label={t("join.profile")}
                    value={join.profile}
                    options={(["All", "Placement", "Mirror"] as const).map((value) => ({
                      value,
                      label: t(`join.profile${value}`),
                    }))}
                    onChange={(profile) => set({ profile: profile as Join["profile"] })}
                  />
                )}
              </Field>
              {join.profile === "Placement" && text("namespaces", "shop, blog")}
            </>
          ) : (
            text("kubeconfig", "oak.kubeconfig")
          )}
          {text("labels", "env=prod, team=shop")}
          {text("provider", "aws")}
          {text("region", "eu-central-1")}
        </form>
        <div className="stack">
          <Section title={t("join.run")}>
            <p className="muted">{t(join.way === "agent" ? "join.runAgent" : "join.runKubeconfig")}</p>
            <Command line={command(join) + (join.way === "agent" ? " | kubectl apply -f -" : "")} />
            {join.way === "agent" && !join.image && <p className="muted">{t("join.process")}</p>}
            {join.way === "agent" && <p className="muted">{t("join.secret")}</p>}
          </Section>
          {join.name && !problem && <Progress name={join.name} way={join.way} />}
        </div>
      </div>
    </Page>
  )
}

function Command({ line }: { line: string }) {
  const [copied, setCopied] = useState(false)
  return (
    <div className="command">
      <code className="selectable" data-testid="command">
        {line}
      </code>
      <Button
        onClick={() =>
          navigator.clipboard.writeText(line).then(
            () => setCopied(true),
            () => {},
          )
        }
      >
        <span aria-live="polite">{copied ? t("common.copied") : t("common.copy")}</span>
      </Button>
    </div>
  )
}

const tones = { done: "good", now: "warn", later: "unknown", failed: "bad" } as const

/** The progress of the join of a cluster, polled while the page is open. */
function Progress({ name, way }: { name: string; way: Join["way"] }) {
  const answer = useCluster(name, 2_000)
  if (answer.allowed === false || (answer.error && answer.error.code !== 404)) return null
  const all = steps(answer.data, way)
  const joined = all.every((s) => s.state === "done")
  return (
    <Section title={t("join.progress", { name })}>
      <ol className="join-steps" aria-live="polite">
        {all.map((s) => (
          <li key={s.stage} aria-current={s.state === "now" ? "step" : undefined}>
            <Mark tone={tones[s.state]}>{t(`join.${s.stage}${s.state === "done" ? "Done" : ""}`)}</Mark>
            {s.message && <p className="muted selectable">{s.message}</p>}
          </li>
        ))}
      </ol>
      {joined && (
        <Link className="button main" href={clusterLink(name)}>
          {t("join.open", { name })}
        </Link>
      )}
    </Section>
  )
}
