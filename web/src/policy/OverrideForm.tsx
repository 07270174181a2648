import { examples } from "../join/command"
import { Section } from "../part/Page"
import { t } from "../text/text"
import { Affinity } from "./Affinity"
import { at, list, type Path, text } from "./form"
import { type PolicyForm, Selectors } from "./PropagationForm"
import { ChoiceField, type Form, JSONField, LabelsField, NamesField, options, Rows, TextField } from "./parts"

const operators = () => options(["add", "policy.add"], ["replace", "policy.replace"], ["remove", "policy.take"])

export function OverrideForm(props: PolicyForm) {
  const { kind: _, wrong, ...form } = props
  const old = at(form.object, ["spec", "overriders"]) !== undefined && list(form.object, ["spec", "overrideRules"]).length === 0
  return (
    <>
      <Selectors {...props} />
      <Section title={t("policy.changes")}>
        {wrong(["spec", "overrideRules"]) && <p className="field-error">{wrong(["spec", "overrideRules"])}</p>}
        {old ? (
          <>
            <Affinity {...form} path={["spec", "targetCluster"]} />
            <Overriders {...form} path={["spec", "overriders"]} />
          </>
        ) : (
          <Rows
            {...form}
            path={["spec", "overrideRules"]}
            title={t("policy.rules")}
            hint={t("policy.rulesHint")}
            add={t("policy.addRule")}
            fresh={{ overriders: {} }}
          >
            {(path) => (
              <>
                <Affinity {...form} path={[...path, "targetCluster"]} />
                <Overriders {...form} path={[...path, "overriders"]} />
              </>
            )}
          </Rows>
        )}
      </Section>
    </>
  )
}

/** What is changed of an object. The value of what is removed matters for none of these but words. */
function Overriders({ path, ...form }: Form & { path: Path }) {
  const removes = (p: Path) => text(form.object, [...p, "operator"]) === "remove"
  const operator = (p: Path) => (
    <ChoiceField
      {...form}
      path={[...p, "operator"]}
      label={t("policy.operator")}
      options={[{ value: "", label: "…" }, ...operators()]}
    />
  )
  const fields = list(form.object, [...path, "fieldOverrider"]).length
  return (
    <div className="overriders">
      <Rows
        {...form}
        path={[...path, "imageOverrider"]}
        title={t("policy.images")}
        add={t("policy.addImage")}
        fresh={{ component: "Registry", operator: "replace" }}
      >
        {(p) => (
          <>
            <ChoiceField
              {...form}
              path={[...p, "component"]}
              label={t("policy.component")}
              options={[
                { value: "", label: "…" },
                ...options(["Registry", "policy.Registry"], ["Repository", "policy.Repository"], ["Tag", "policy.Tag"]),
              ]}
            />
            {operator(p)}
            {!removes(p) && <TextField {...form} path={[...p, "value"]} label={t("policy.value")} />}
            <TextField
              {...form}
              path={[...p, "predicate", "path"]}
              label={t("policy.imageAt")}
              placeholder={t("policy.allContainers")}
            />
          </>
        )}
      </Rows>
      {(["commandOverrider", "argsOverrider"] as const).map((of) => (
        <Rows
          key={of}
          {...form}
          path={[...path, of]}
          title={t(`policy.${of}`)}
          add={t(`policy.${of}Add`)}
          fresh={{ containerName: "", operator: "add", value: [] }}
        >
          {(p) => (
            <>
              <TextField {...form} path={[...p, "containerName"]} label={t("policy.container")} />
              {operator(p)}
              <NamesField {...form} path={[...p, "value"]} label={t("policy.words")} />
            </>
          )}
        </Rows>
      ))}
      {(["labelsOverrider", "annotationsOverrider"] as const).map((of) => (
        <Rows
          key={of}
          {...form}
          path={[...path, of]}
          title={t(`policy.${of}`)}
          add={t(`policy.${of}Add`)}
          fresh={{ operator: "add", value: {} }}
        >
          {(p) => (
            <>
              {operator(p)}
              <LabelsField {...form} path={[...p, "value"]} label={t("policy.value")} />
            </>
          )}
        </Rows>
      ))}
      <Rows
        {...form}
        path={[...path, "plaintext"]}
        title={t("policy.anyField")}
        add={t("policy.addField")}
        fresh={{ path: "/spec/", operator: "replace" }}
      >
        {(p) => (
          <>
            <TextField {...form} path={[...p, "path"]} label={t("policy.pointer")} placeholder={examples.pointer} />
            {operator(p)}
            {!removes(p) && <JSONField {...form} path={[...p, "value"]} label={t("policy.json")} />}
          </>
        )}
      </Rows>
      {fields > 0 && <p className="field-hint">{t("policy.fieldOverriders", { n: fields })}</p>}
    </div>
  )
}
