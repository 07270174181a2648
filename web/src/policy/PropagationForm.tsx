import { examples } from "../join/command"
import { Section } from "../part/Page"
import { t } from "../text/text"
import { Affinity } from "./Affinity"
import { at, kinds, list, type PolicyKind, type Problem, put, text } from "./form"
import { CheckField, ChoiceField, type Form, LabelsField, NamesField, NumberField, options, Rows, TextField } from "./parts"

const spec = ["spec"]
const placement = ["spec", "placement"]
const scheduling = [...placement, "replicaScheduling"]
const weights = [...scheduling, "weightPreference"]

export interface PolicyForm extends Form {
  kind: PolicyKind
  /** The error of a field, by its path. */
  wrong: (path: readonly (string | number)[]) => string | undefined
}

export const wrongIn = (problems: Problem[]) => (path: readonly (string | number)[]) => {
  const found = problems.find((p) => p.path.join("/") === path.join("/"))
  return found && t(`policy.${found.key}`)
}

export function Selectors({ kind, wrong, ...form }: PolicyForm) {
  return (
    <Section title={t("policy.selects")}>
      {wrong(["spec", "resourceSelectors"]) && <p className="field-error">{wrong(["spec", "resourceSelectors"])}</p>}
      <Rows
        {...form}
        path={["spec", "resourceSelectors"]}
        title={t("policy.selectors")}
        hint={t(kinds[kind].overrides ? "policy.selectorsOverrideHint" : "policy.selectorsHint")}
        add={t("policy.addSelector")}
        fresh={{ apiVersion: "apps/v1", kind: "Deployment" }}
      >
        {(path) => (
          <>
            <TextField
              {...form}
              path={[...path, "apiVersion"]}
              label={t("policy.apiVersion")}
              placeholder={examples.apiVersion}
              error={wrong([...path, "apiVersion"])}
            />
            <TextField
              {...form}
              path={[...path, "kind"]}
              label={t("common.kind")}
              placeholder={examples.kind}
              error={wrong([...path, "kind"])}
            />
            <TextField {...form} path={[...path, "name"]} label={t("common.name")} placeholder={t("policy.any")} />
            {!kinds[kind].namespaced && (
              <TextField {...form} path={[...path, "namespace"]} label={t("common.namespace")} placeholder={t("policy.any")} />
            )}
            <LabelsField {...form} path={[...path, "labelSelector", "matchLabels"]} label={t("policy.labels")} />
          </>
        )}
      </Rows>
    </Section>
  )
}

export function PropagationForm(props: PolicyForm) {
  const { kind: _, wrong, ...form } = props
  const grouped = list(form.object, [...placement, "clusterAffinities"]).length > 0
  const divided = text(form.object, [...scheduling, "replicaSchedulingType"]) === "Divided"
  const weighted = divided && text(form.object, [...scheduling, "replicaDivisionPreference"]) !== "Aggregated"
  const dynamic = text(form.object, [...weights, "dynamicWeight"]) !== ""
  return (
    <>
      <Selectors {...props} />
      <Section title={t("policy.where")}>
        {!grouped && <Affinity {...form} path={[...placement, "clusterAffinity"]} />}
        {wrong([...placement, "clusterAffinities"]) && (
          <p className="field-error">{wrong([...placement, "clusterAffinities"])}</p>
        )}
        {(grouped || !at(form.object, [...placement, "clusterAffinity"])) && (
          <Rows
            {...form}
            path={[...placement, "clusterAffinities"]}
            title={t("policy.groups")}
            hint={t("policy.groupsHint")}
            add={t("policy.addGroup")}
            fresh={{ affinityName: `group-${list(form.object, [...placement, "clusterAffinities"]).length + 1}` }}
          >
            {(path) => (
              <>
                <TextField
                  {...form}
                  path={[...path, "affinityName"]}
                  label={t("policy.groupName")}
                  error={wrong([...path, "affinityName"])}
                />
                <Affinity {...form} path={path} />
              </>
            )}
          </Rows>
        )}
        <Rows
          {...form}
          path={[...placement, "clusterTolerations"]}
          title={t("policy.tolerations")}
          hint={t("policy.tolerationsHint")}
          add={t("policy.addToleration")}
          fresh={{ operator: "Exists" }}
        >
          {(path) => (
            <>
              <TextField {...form} path={[...path, "key"]} label={t("policy.taintKey")} placeholder={t("policy.any")} />
              <ChoiceField
                {...form}
                path={[...path, "operator"]}
                label={t("policy.operator")}
                options={options(["Equal", "policy.Equal"], ["Exists", "policy.Exists"])}
              />
              {text(form.object, [...path, "operator"]) !== "Exists" && (
                <TextField {...form} path={[...path, "value"]} label={t("policy.value")} />
              )}
              <ChoiceField
                {...form}
                path={[...path, "effect"]}
                label={t("policy.effect")}
                options={[
                  { value: "", label: t("policy.any") },
                  ...["NoSchedule", "NoExecute"].map((v) => ({ value: v, label: v })),
                ]}
              />
            </>
          )}
        </Rows>
      </Section>
      <Section title={t("policy.spread")}>
        <Rows
          {...form}
          path={[...placement, "spreadConstraints"]}
          title={t("policy.constraints")}
          hint={t("policy.constraintsHint")}
          add={t("policy.addConstraint")}
          fresh={{ spreadByField: "zone", minGroups: 2 }}
        >
          {(path) => (
            <>
              {!text(form.object, [...path, "spreadByLabel"]) && (
                <ChoiceField
                  {...form}
                  path={[...path, "spreadByField"]}
                  label={t("policy.spreadBy")}
                  options={options(
                    ["cluster", "policy.byCluster"],
                    ["region", "policy.region"],
                    ["zone", "policy.zone"],
                    ["provider", "policy.provider"],
                  )}
                />
              )}
              {!text(form.object, [...path, "spreadByField"]) && (
                <TextField
                  {...form}
                  path={[...path, "spreadByLabel"]}
                  label={t("policy.byLabel")}
                  placeholder={examples.labelKey}
                />
              )}
              <NumberField {...form} path={[...path, "minGroups"]} label={t("policy.min")} placeholder="1" />
              <NumberField {...form} path={[...path, "maxGroups"]} label={t("policy.max")} placeholder={t("policy.noLimit")} />
            </>
          )}
        </Rows>
      </Section>
      <Section title={t("policy.replicas")}>
        <ChoiceField
          {...form}
          path={[...scheduling, "replicaSchedulingType"]}
          label={t("policy.sharing")}
          options={options(["Duplicated", "policy.Duplicated"], ["Divided", "policy.Divided"])}
        />
        {divided && (
          <ChoiceField
            {...form}
            path={[...scheduling, "replicaDivisionPreference"]}
            label={t("policy.division")}
            options={options(["Weighted", "policy.Weighted"], ["Aggregated", "policy.Aggregated"])}
          />
        )}
        {weighted && (
          <CheckField
            {...form}
            object={{ v: dynamic || undefined }}
            onChange={(v) =>
              form.onChange(put(form.object, weights, at(v, ["v"]) ? { dynamicWeight: "AvailableReplicas" } : undefined))
            }
            path={["v"]}
            label={t("policy.dynamic")}
            hint={t("policy.dynamicHint")}
          />
        )}
        {weighted && !dynamic && (
          <Rows
            {...form}
            path={[...weights, "staticWeightList"]}
            title={t("policy.weights")}
            hint={t("policy.weightsHint")}
            add={t("policy.addWeight")}
            fresh={{ targetCluster: {}, weight: 1 }}
          >
            {(path) => (
              <>
                <NamesField
                  {...form}
                  path={[...path, "targetCluster", "clusterNames"]}
                  label={t("policy.clusterNames")}
                  placeholder={t("policy.any")}
                />
                <LabelsField
                  {...form}
                  path={[...path, "targetCluster", "labelSelector", "matchLabels"]}
                  label={t("policy.clusterLabels")}
                />
                <NumberField
                  {...form}
                  path={[...path, "weight"]}
                  label={t("policy.weight")}
                  min={1}
                  error={wrong([...path, "weight"])}
                />
              </>
            )}
          </Rows>
        )}
      </Section>
      <Section title={t("policy.more")}>
        <NumberField
          {...form}
          path={[...spec, "priority"]}
          label={t("policy.priority")}
          hint={t("policy.priorityHint")}
          placeholder="0"
          min={-1000000}
        />
        <ChoiceField
          {...form}
          path={[...spec, "conflictResolution"]}
          label={t("policy.conflict")}
          options={options(["Abort", "policy.Abort"], ["Overwrite", "policy.Overwrite"])}
        />
        <ChoiceField
          {...form}
          path={[...spec, "activationPreference"]}
          label={t("policy.activation")}
          options={options(["", "policy.atOnce"], ["Lazy", "policy.Lazy"])}
        />
        <CheckField {...form} path={[...spec, "propagateDeps"]} label={t("policy.deps")} hint={t("policy.depsHint")} />
        <CheckField
          {...form}
          path={[...spec, "preserveResourcesOnDeletion"]}
          label={t("policy.preserve")}
          hint={t("policy.preserveHint")}
        />
        <CheckField
          {...form}
          path={[...spec, "suspension", "dispatching"]}
          label={t("policy.suspend")}
          hint={t("policy.suspendHint")}
        />
      </Section>
    </>
  )
}
