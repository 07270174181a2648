import { examples } from "../join/command"
import type { Key } from "../text/text"
import { at, kinds, list, type Path, type PolicyKind, text, type Value } from "./form"

// The forms of policies as data: the fields in their order, with the type of each.

interface Common {
  at: Path
  label: Key
  hint?: Key
  example?: string
  /** Whether the field is shown, for the object that contains it. */
  when?: (of: Value) => boolean
}

export type Spec = Common &
  (
    | { as: "text" | "names" | "labels" | "number" | "check" | "json" }
    /** The first option is the default. */
    | { as: "choice"; options: [string, Key][] }
    | { as: "rows"; add: Key; fresh: (count: number) => Value; fields: Spec[] }
    /** provider, region or zone of an affinity, stored as an expression of its fieldSelector. */
    | { as: "oneOf" }
    /** On: the field has this value; off: it is absent. */
    | { as: "switch"; value: Value }
    /** The parts of an affinity that the form does not show. */
    | { as: "unseen" }
  )

export interface Part {
  title: Key
  fields: Spec[]
}

const inside = (specs: Spec[], ...path: Path): Spec[] =>
  specs.map((s) => ({ ...s, at: [...path, ...s.at], when: s.when && ((o) => s.when?.(at(o, path)) ?? true) }))

const affinity: Spec[] = [
  {
    as: "names",
    at: ["clusterNames"],
    label: "object.clusters",
    hint: "policy.clusterNamesHint",
    example: examples.clusters,
  },
  { as: "names", at: ["exclude"], label: "policy.exclude", example: examples.cluster },
  { as: "labels", at: ["labelSelector", "matchLabels"], label: "policy.clusterLabels", example: examples.label },
  { as: "oneOf", at: ["provider"], label: "policy.provider" },
  { as: "oneOf", at: ["region"], label: "policy.region" },
  { as: "oneOf", at: ["zone"], label: "policy.zone" },
  { as: "unseen", at: [], label: "policy.unseen" },
]

const selectors = (kind: PolicyKind): Part => ({
  title: "policy.selects",
  fields: [
    {
      as: "rows",
      at: ["resourceSelectors"],
      label: "policy.selectors",
      hint: kinds[kind].overrides ? "policy.selectorsOverrideHint" : "policy.selectorsHint",
      add: "policy.addSelector",
      fresh: () => ({ apiVersion: examples.apiVersion, kind: examples.kind }),
      fields: [
        { as: "text", at: ["apiVersion"], label: "policy.apiVersion", example: examples.apiVersion },
        { as: "text", at: ["kind"], label: "common.kind", example: examples.kind },
        { as: "text", at: ["name"], label: "common.name" },
        ...(kinds[kind].namespaced ? [] : ([{ as: "text", at: ["namespace"], label: "common.namespace" }] as Spec[])),
        { as: "labels", at: ["labelSelector", "matchLabels"], label: "object.labels" },
      ],
    },
  ],
})

const grouped = (spec: Value) => list(spec, ["placement", "clusterAffinities"]).length > 0
const scheduling: Path = ["placement", "replicaScheduling"]
const weights: Path = [...scheduling, "weightPreference"]
const divided = (spec: Value) => text(spec, [...scheduling, "replicaSchedulingType"]) === "Divided"
const weighted = (spec: Value) => divided(spec) && text(spec, [...scheduling, "replicaDivisionPreference"]) !== "Aggregated"
const dynamic = (spec: Value) => text(spec, [...weights, "dynamicWeight"]) !== ""

const propagation: Part[] = [
  {
    title: "object.where",
    fields: [
      ...inside(affinity, "placement", "clusterAffinity").map((s): Spec => ({ ...s, when: (spec) => !grouped(spec) })),
      {
        as: "rows",
        at: ["placement", "clusterAffinities"],
        label: "policy.groups",
        hint: "policy.groupsHint",
        add: "policy.addGroup",
        when: (spec) => grouped(spec) || !at(spec, ["placement", "clusterAffinity"]),
        fresh: (n) => ({ affinityName: `group-${n + 1}` }),
        fields: [{ as: "text", at: ["affinityName"], label: "policy.groupName" }, ...affinity],
      },
      {
        as: "rows",
        at: ["placement", "clusterTolerations"],
        label: "policy.tolerations",
        hint: "policy.tolerationsHint",
        add: "policy.addToleration",
        fresh: () => ({ operator: "Exists" }),
        fields: [
          { as: "text", at: ["key"], label: "policy.taintKey" },
          {
            as: "choice",
            at: ["operator"],
            label: "policy.operator",
            options: [
              ["Equal", "policy.Equal"],
              ["Exists", "policy.Exists"],
            ],
          },
          { as: "text", at: ["value"], label: "object.value", when: (of) => text(of, ["operator"]) !== "Exists" },
          {
            as: "choice",
            at: ["effect"],
            label: "policy.effect",
            options: [
              ["", "policy.any"],
              ["NoSchedule", "policy.NoSchedule"],
              ["NoExecute", "policy.NoExecute"],
            ],
          },
        ],
      },
    ],
  },
  {
    title: "policy.spread",
    fields: [
      {
        as: "rows",
        at: ["placement", "spreadConstraints"],
        label: "policy.constraints",
        hint: "policy.constraintsHint",
        add: "policy.addConstraint",
        fresh: () => ({ spreadByField: "zone", minGroups: 2 }),
        fields: [
          {
            as: "choice",
            at: ["spreadByField"],
            label: "policy.spreadBy",
            options: [
              ["", "policy.byLabel"],
              ["cluster", "common.cluster"],
              ["region", "policy.region"],
              ["zone", "policy.zone"],
              ["provider", "policy.provider"],
            ],
          },
          {
            as: "text",
            at: ["spreadByLabel"],
            label: "policy.label",
            example: examples.labelKey,
            when: (of) => !text(of, ["spreadByField"]),
          },
          { as: "number", at: ["minGroups"], label: "policy.min" },
          { as: "number", at: ["maxGroups"], label: "policy.max" },
        ],
      },
    ],
  },
  {
    title: "policy.replicas",
    fields: [
      {
        as: "choice",
        at: [...scheduling, "replicaSchedulingType"],
        label: "policy.sharing",
        options: [
          ["Duplicated", "policy.Duplicated"],
          ["Divided", "policy.Divided"],
        ],
      },
      {
        as: "choice",
        at: [...scheduling, "replicaDivisionPreference"],
        label: "policy.division",
        options: [
          ["Weighted", "policy.Weighted"],
          ["Aggregated", "policy.Aggregated"],
        ],
        when: divided,
      },
      {
        as: "switch",
        at: weights,
        label: "policy.dynamic",
        hint: "policy.dynamicHint",
        value: { dynamicWeight: "AvailableReplicas" },
        when: weighted,
      },
      {
        as: "rows",
        at: [...weights, "staticWeightList"],
        label: "policy.weights",
        hint: "policy.weightsHint",
        add: "policy.addWeight",
        when: (spec) => weighted(spec) && !dynamic(spec),
        fresh: () => ({ targetCluster: {}, weight: 1 }),
        fields: [
          { as: "names", at: ["targetCluster", "clusterNames"], label: "object.clusters" },
          { as: "labels", at: ["targetCluster", "labelSelector", "matchLabels"], label: "policy.clusterLabels" },
          { as: "number", at: ["weight"], label: "policy.weight" },
        ],
      },
    ],
  },
  {
    title: "common.more",
    fields: [
      { as: "number", at: ["priority"], label: "policy.priority", hint: "policy.priorityHint" },
      {
        as: "choice",
        at: ["conflictResolution"],
        label: "policy.conflict",
        options: [
          ["Abort", "policy.Abort"],
          ["Overwrite", "policy.Overwrite"],
        ],
      },
      {
        as: "choice",
        at: ["activationPreference"],
        label: "policy.activation",
        options: [
          ["", "policy.atOnce"],
          ["Lazy", "policy.Lazy"],
        ],
      },
      { as: "check", at: ["propagateDeps"], label: "policy.deps", hint: "policy.depsHint" },
      { as: "check", at: ["preserveResourcesOnDeletion"], label: "policy.preserve", hint: "policy.preserveHint" },
      { as: "check", at: ["suspension", "dispatching"], label: "policy.suspend", hint: "policy.suspendHint" },
    ],
  },
]

const operator: Spec = {
  as: "choice",
  at: ["operator"],
  label: "policy.operator",
  options: [
    ["", "policy.choose"],
    ["add", "policy.add"],
    ["replace", "policy.replace"],
    ["remove", "policy.take"],
  ],
}
const keeps = (of: Value) => text(of, ["operator"]) !== "remove"
const words = (name: string, label: Key, add: Key): Spec => ({
  as: "rows",
  at: [name],
  label,
  add,
  fresh: () => ({ operator: "add" }),
  fields: [{ as: "text", at: ["containerName"], label: "object.container" }, operator, { as: "names", at: ["value"], label: "policy.words" }],
})
const keys = (name: string, label: Key, add: Key): Spec => ({
  as: "rows",
  at: [name],
  label,
  add,
  fresh: () => ({ operator: "add" }),
  fields: [operator, { as: "labels", at: ["value"], label: "object.value" }],
})

const overriders: Spec[] = [
  {
    as: "rows",
    at: ["imageOverrider"],
    label: "policy.images",
    add: "policy.addImage",
    fresh: () => ({ component: "Registry", operator: "replace" }),
    fields: [
      {
        as: "choice",
        at: ["component"],
        label: "policy.component",
        options: [
          ["", "policy.choose"],
          ["Registry", "policy.Registry"],
          ["Repository", "policy.Repository"],
          ["Tag", "policy.Tag"],
        ],
      },
      operator,
      { as: "text", at: ["value"], label: "object.value", when: keeps },
      { as: "text", at: ["predicate", "path"], label: "policy.imageAt" },
    ],
  },
  words("commandOverrider", "policy.commands", "policy.addCommand"),
  words("argsOverrider", "policy.args", "policy.addArgs"),
  keys("labelsOverrider", "object.labels", "policy.addLabels"),
  keys("annotationsOverrider", "object.annotations", "policy.addAnnotations"),
  {
    as: "rows",
    at: ["plaintext"],
    label: "policy.anyField",
    hint: "policy.anyFieldHint",
    add: "policy.addField",
    fresh: () => ({ path: examples.pointer, operator: "replace" }),
    fields: [
      { as: "text", at: ["path"], label: "policy.pointer", example: examples.pointer },
      operator,
      { as: "json", at: ["value"], label: "policy.json", when: keeps },
    ],
  },
]

// A single rule may have the older form, directly in spec. It is edited there.
const old = (spec: Value) => at(spec, ["overriders"]) !== undefined && list(spec, ["overrideRules"]).length === 0
const oldRule = [...inside(affinity, "targetCluster"), ...inside(overriders, "overriders")].map((s): Spec => ({ ...s, when: old }))

const override: Part = {
  title: "policy.changes",
  fields: [
    ...oldRule,
    {
      as: "rows",
      at: ["overrideRules"],
      label: "policy.rules",
      hint: "policy.rulesHint",
      add: "policy.addRule",
      when: (spec) => !old(spec),
      fresh: () => ({ overriders: {} }),
      fields: [...inside(affinity, "targetCluster"), ...inside(overriders, "overriders")],
    },
  ],
}

export function parts(kind: PolicyKind): Part[] {
  return kinds[kind].overrides ? [selectors(kind), override] : [selectors(kind), ...propagation]
}
