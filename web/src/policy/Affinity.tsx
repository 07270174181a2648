import { examples } from "../join/command"
import { t } from "../text/text"
import { at, oneOf, type Path, put, setOneOf, unseen } from "./form"
import { type Form, LabelsField, NamesField } from "./parts"

/** Which clusters: every part that is set must match. */
export function Affinity({ path, ...form }: Form & { path: Path }) {
  const affinity = at(form.object, path)
  const more = unseen(affinity)
  return (
    <div className="affinity">
      <NamesField
        {...form}
        path={[...path, "clusterNames"]}
        label={t("policy.clusterNames")}
        hint={t("policy.clusterNamesHint")}
        placeholder={examples.clusters}
      />
      <NamesField {...form} path={[...path, "exclude"]} label={t("policy.exclude")} placeholder={examples.cluster} />
      <LabelsField
        {...form}
        path={[...path, "labelSelector", "matchLabels"]}
        label={t("policy.clusterLabels")}
        placeholder={examples.label}
      />
      {(["provider", "region", "zone"] as const).map((key) => (
        <NamesField
          key={key}
          {...form}
          object={{ v: oneOf(affinity, key) }}
          onChange={(v) => form.onChange(put(form.object, path, setOneOf(affinity, key, (at(v, ["v"]) ?? []) as string[])))}
          path={["v"]}
          label={t(`policy.${key}`)}
        />
      ))}
      {more > 0 && <p className="field-hint">{t("policy.unseen", { n: more })}</p>}
    </div>
  )
}
