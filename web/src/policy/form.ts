// A policy is edited as an object: each field of the form sets one value at one path. Fields that
// the form does not know stay unchanged.

import { get, isObject, type Json, list as listOf, text as textOf } from "../hub/fields"

export type Path = readonly (string | number)[]
export type Value = unknown

export const at = (object: Value, path: Path): Value => get(object as Json, ...path)
export const list = (object: Value, path: Path): Value[] => listOf(object as Json, ...path)
export const text = (object: Value, path: Path): string => textOf(object as Json, ...path)

function nothing(v: Value): boolean {
  return v === undefined || v === null || v === "" || (Array.isArray(v) && v.length === 0) || (isObject(v) && Object.keys(v).length === 0)
}

/**
 * Returns the object with a value set at a path; missing parents are created. An empty value
 * (undefined, "", an empty list or object) removes the field and parents that become empty.
 * Elements of lists keep their index.
 */
export function put(object: Value, path: Path, value: Value): Value {
  const [step, ...rest] = path
  if (step === undefined) return value
  if (typeof step === "number") {
    const next = Array.isArray(object) ? [...object] : []
    next[step] = put(next[step], rest, value) ?? {}
    return next
  }
  const next: Record<string, Value> = isObject(object) ? { ...object } : {}
  const inner = put(next[step], rest, value)
  if (nothing(inner)) delete next[step]
  else next[step] = inner
  return next
}

export function append(object: Value, path: Path, value: Value): Value {
  return put(object, path, [...list(object, path), value])
}

export function remove(object: Value, path: Path, index: number): Value {
  return put(
    object,
    path,
    list(object, path).filter((_, i) => i !== index),
  )
}

/** The names in a line. */
export function names(line: string): string[] {
  return [...new Set(line.split(/[\s,]+/).filter(Boolean))]
}

/** Parses labels as kubectl writes them, k=v,k=v; undefined: a part has no "=". */
export function labels(line: string): Record<string, string> | undefined {
  const of: Record<string, string> = {}
  for (const part of names(line)) {
    const i = part.indexOf("=")
    if (i < 1) return undefined
    of[part.slice(0, i)] = part.slice(i + 1)
  }
  return of
}

export function labelLine(of: Value): string {
  return isObject(of)
    ? Object.entries(of)
        .map(([k, v]) => `${k}=${v}`)
        .join(", ")
    : ""
}

export type PolicyKind = "PropagationPolicy" | "ClusterPropagationPolicy" | "OverridePolicy" | "ClusterOverridePolicy"

export const kinds: Record<PolicyKind, { plural: string; namespaced: boolean; overrides: boolean }> = {
  PropagationPolicy: { plural: "propagationpolicies", namespaced: true, overrides: false },
  ClusterPropagationPolicy: { plural: "clusterpropagationpolicies", namespaced: false, overrides: false },
  OverridePolicy: { plural: "overridepolicies", namespaced: true, overrides: true },
  ClusterOverridePolicy: { plural: "clusteroverridepolicies", namespaced: false, overrides: true },
}

export const group = "policy.orrery.dev"
export const version = "v1alpha1"

export function path(kind: PolicyKind, namespace?: string, name?: string): string {
  const k = kinds[kind]
  const ns = k.namespaced && namespace ? `/namespaces/${encodeURIComponent(namespace)}` : ""
  return `/apis/${group}/${version}${ns}/${k.plural}${name ? `/${encodeURIComponent(name)}` : ""}`
}

/** A new policy. */
export function fresh(kind: PolicyKind, namespace: string): Value {
  const metadata = { name: "", ...(kinds[kind].namespaced ? { namespace } : {}) }
  const resourceSelectors = [{ apiVersion: "apps/v1", kind: "Deployment" }]
  const spec = kinds[kind].overrides ? { resourceSelectors, overrideRules: [{ overriders: {} }] } : { resourceSelectors, placement: {} }
  return { apiVersion: `${group}/${version}`, kind, metadata, spec }
}

export interface Problem {
  path: Path
  /** A key of the texts for policies. */
  key: "needsName" | "needsSelector" | "needsKind" | "needsVersion" | "needsRule" | "bothAffinities" | "needsGroupName" | "badWeight"
}

/** Errors that are found without the hub. A dry run at the hub finds all others. */
export function problems(kind: PolicyKind, object: Value): Problem[] {
  const all: Problem[] = []
  if (!text(object, ["metadata", "name"])) all.push({ path: ["metadata", "name"], key: "needsName" })
  const selectors = ["spec", "resourceSelectors"]
  if (!kinds[kind].overrides && list(object, selectors).length === 0) all.push({ path: selectors, key: "needsSelector" })
  list(object, selectors).forEach((s, i) => {
    if (!text(s, ["kind"])) all.push({ path: [...selectors, i, "kind"], key: "needsKind" })
    if (!text(s, ["apiVersion"])) all.push({ path: [...selectors, i, "apiVersion"], key: "needsVersion" })
  })
  if (kinds[kind].overrides) {
    const rules = list(object, ["spec", "overrideRules"])
    if (rules.length === 0 && !at(object, ["spec", "overriders"])) all.push({ path: ["spec", "overrideRules"], key: "needsRule" })
    return all
  }
  const placement = ["spec", "placement"]
  const groups = list(object, [...placement, "clusterAffinities"])
  if (groups.length > 0 && at(object, [...placement, "clusterAffinity"])) all.push({ path: [...placement, "clusterAffinities"], key: "bothAffinities" })
  groups.forEach((g, i) => {
    if (!text(g, ["affinityName"])) all.push({ path: [...placement, "clusterAffinities", i, "affinityName"], key: "needsGroupName" })
  })
  const weights = [...placement, "replicaScheduling", "weightPreference", "staticWeightList"]
  list(object, weights).forEach((w, i) => {
    const weight = at(w, ["weight"])
    if (!(typeof weight === "number" && Number.isInteger(weight) && weight >= 1)) all.push({ path: [...weights, i, "weight"], key: "badWeight" })
  })
  return all
}

/**
 * The allowed values of a cluster's field: those of a fieldSelector expression with In. Other
 * expressions stay unchanged.
 */
export function oneOf(affinity: Value, key: string): string[] {
  const found = list(affinity, ["fieldSelector", "matchExpressions"]).find((e) => text(e, ["key"]) === key && text(e, ["operator"]) === "In")
  return list(found, ["values"]).map(String)
}

export function setOneOf(affinity: Value, key: string, values: string[]): Value {
  const path = ["fieldSelector", "matchExpressions"]
  const all = list(affinity, path)
  const i = all.findIndex((e) => text(e, ["key"]) === key && text(e, ["operator"]) === "In")
  if (values.length === 0) return i < 0 ? affinity : remove(affinity, path, i)
  return i < 0 ? append(affinity, path, { key, operator: "In", values }) : put(affinity, [...path, i, "values"], values)
}

/**
 * The number of expressions of an affinity that the form does not show. They are kept, and can be
 * edited as YAML.
 */
export function unseen(affinity: Value): number {
  const fields = list(affinity, ["fieldSelector", "matchExpressions"]).filter((e) => text(e, ["operator"]) !== "In")
  return fields.length + list(affinity, ["labelSelector", "matchExpressions"]).length
}
