import { expect, test } from "vitest"
import type { Kind } from "../src/hub/kinds"
import { findKind, pathOf, readKinds } from "../src/hub/kinds"
import { ofRef, parseOf } from "../src/hub/link"
import { everyColumn, nextSort, shown, staleColumn, toneOfCell } from "../src/table/columns"
import { accept, complete, completion, has, named, splitKind, terms, toggled } from "../src/table/query"
import { asked, heightOf, moved, ratioOf, reveal, visible } from "../src/table/rows"
import { objectsOf, warningsOf } from "../src/table/search"
import { actsOf, actsOfAll, byCluster, forEach } from "../src/table/selection"
import { question, readState, writeState } from "../src/table/state"
import { forget, keep, views } from "../src/table/views"

const kind = (name: string, group = "", short: string[] = [], namespaced = true): Kind => ({
  group,
  version: "v1",
  resource: `${name.toLowerCase()}s`,
  singular: name.toLowerCase(),
  kind: name,
  shortNames: short,
  categories: [],
  namespaced,
  verbs: ["get", "list", "watch"],
  subresources: [],
  of: group ? `${name}.${group}` : name,
})
const kinds = [kind("Pod", "", ["po"]), kind("Deployment", "apps", ["deploy"]), kind("Node", "", ["no"], false), kind("Pod", "x.example.com")]

test("a kind has many names, and kinds of Kubernetes come first", () => {
  for (const name of ["pod", "Pods", "po", "POD"]) expect(findKind(kinds, name)?.of).toBe("Pod")
  expect(findKind(kinds, "pods.x.example.com")?.of).toBe("Pod.x.example.com")
  expect(findKind(kinds, "Deployment.apps")?.of).toBe("Deployment.apps")
  expect(findKind(kinds, "nothing")).toBeUndefined()
})

test("discovery gives each kind once, in the preferred version", () => {
  const resources = [{ resource: "jobs", responseKind: { kind: "Job", group: "", version: "" }, scope: "Namespaced" }]
  const found = readKinds([{ items: [{ metadata: { name: "batch" }, versions: ["v1", "v1beta1"].map((version) => ({ version, resources })) }] }])
  expect(found.map((k) => [k.of, k.version])).toEqual([["Job.batch", "v1"]])
})

test("paths", () => {
  expect(pathOf(kinds[0]!)).toBe("/api/v1/pods")
  expect(pathOf(kinds[1]!, "shop", "web")).toBe("/apis/apps/v1/namespaces/shop/deployments/web")
  expect(pathOf(kinds[2]!, "shop", "a/b?c")).toBe("/api/v1/nodes/a%2Fb%3Fc")
})

test("a reference survives the round trip through a URL", () => {
  for (const ref of [
    { cluster: "", kind: "Node", group: "", namespace: "", name: "n1" },
    { cluster: "oak", kind: "Website", group: "apps.orrery.dev", namespace: "shop", name: "web.x" },
  ])
    expect(parseOf(ofRef(ref), ref.cluster)).toEqual(ref)
  for (const bad of ["", "Pod", "/a/b", "Pod/a/b/c", "Pod/"]) expect(parseOf(bad)).toBeUndefined()
})

test("terms keep quoted text together", () => {
  expect(terms(' web  text:"failed to pull"  "a \\" b" kind:po')).toEqual(["web", 'text:"failed to pull"', '"a \\" b"', "kind:po"])
})

test("two characters match the beginning of a name, longer text any part of it", () => {
  expect(["we", "0-", "web", "kind:x", '"', "s:"].map(named)).toEqual(["name:we*", "name:0-*", '"web"', '"kind:x"', '"\\""', '"s:"'])
})

test("an incomplete term is not sent", () => {
  for (const q of ["kind:", "app=", "age<", "ns:a,", 'text:"a', "-", "web -"]) expect(complete(q)).toBe(false)
  for (const q of ["", "web", "kind:po", 'text:"a b"', "web-", "-phase:Running"]) expect(complete(q)).toBe(true)
})

test("a single kind in a query is the table's kind, several are a search", () => {
  expect(splitKind("web kind:deploy ns:a", kinds)).toEqual({ kind: kinds[1], rest: "web ns:a" })
  expect(splitKind("kind:po kind:deploy", kinds)).toEqual({ rest: "kind:po kind:deploy" })
  expect(splitKind("-kind:po web", kinds).kind).toBeUndefined()
  expect(splitKind("kind:nothing", kinds)).toEqual({ rest: "kind:nothing" })
})

test("keys are completed, then their values", () => {
  expect(completion("ph", 2, kinds, [])).toEqual({ from: 0, options: ["phase:"] })
  expect(completion("web -ph", 7, kinds, [])).toEqual({ from: 5, options: ["phase:"] })
  expect(completion("kind:dep", 8, kinds, [])).toEqual({ from: 5, options: ["Deployment"], key: "kind" })
  expect(completion("ns:a,sh", 7, kinds, ["shop", "blog", "wash"])).toEqual({ from: 5, options: ["shop", "wash"], key: "ns" })
  expect(completion("is:", 3, kinds, []).options).toEqual(["ready", "terminating"])
  expect(completion("web ", 4, kinds, []).options.length).toBeGreaterThan(10)
  expect(completion("", 0, kinds, []).from).toBe(0)
})

test("an option replaces the typed text", () => {
  expect(accept("ns:sh web", 5, 3, "shop")).toEqual({ q: "ns:shop web", cursor: 8 })
  expect(accept("ph", 2, 0, "phase:")).toEqual({ q: "phase:", cursor: 6 })
})

test("a facet adds a term, another value replaces it, and the same value removes it", () => {
  const one = toggled("web", "cluster", "oak")
  expect(one).toBe("web cluster:oak")
  expect(has(one, "cluster", "oak")).toBe(true)
  expect(toggled(one, "cluster", "elm")).toBe("web cluster:elm")
  expect(toggled(one, "cluster", "oak")).toBe("web")
  expect(toggled("ns:a", "namespace", "b")).toBe("namespace:b")
  expect(toggled("", "phase", "")).toBe('phase:""')
})

test("rows on screen, of ten and of a hundred thousand", () => {
  expect(visible({ total: 0, row: 28, view: 600 }, 0)).toEqual({ first: 0, count: 0 })
  expect(visible({ total: 10, row: 28, view: 600 }, 0)).toEqual({ first: 0, count: 10 })
  const f = { total: 100_000, row: 28, view: 980 }
  expect(visible(f, 28 * 50_000).first).toBe(49_996)
  expect(visible(f, 28 * 50_000).count).toBeLessThan(45)
  expect(visible(f, 28 * 100_000 - 980)).toEqual({ first: 99_961, count: 39 })
})

test("a million rows do not exceed the height that browsers allow, and the last row can be reached", () => {
  const f = { total: 3_000_000, row: 28, view: 1000 }
  expect(heightOf(f)).toBeLessThan(17_800_000)
  const end = (heightOf(f) - f.view) * ratioOf(f)
  const { first, count } = visible(f, end)
  expect(first + count).toBe(f.total)
  expect(ratioOf({ total: 1000, row: 28, view: 500 })).toBe(1)
})

test("the requested window contains the rows on screen, and stays below the limit", () => {
  for (const first of [0, 7, 19, 20, 1234, 99_961]) {
    const { offset, limit } = asked(first, 40)
    expect(offset).toBeLessThanOrEqual(first)
    expect(offset + limit).toBeGreaterThanOrEqual(first + 40)
    expect(limit).toBeLessThanOrEqual(200)
  }
})

test("the cursor moves by the keys of k9s and stays among the rows", () => {
  expect(moved("j", -1, 10, 5)).toBe(0)
  expect(moved("k", 0, 10, 5)).toBe(0)
  expect(moved("PageDown", 7, 10, 5)).toBe(9)
  expect(moved("G", 0, 10, 5)).toBe(9)
  expect(moved("j", -1, 0, 5)).toBe(-1)
  expect(moved("z", 0, 10, 5)).toBeUndefined()
  const f = { total: 100, row: 28, view: 280 }
  expect([reveal(f, 0, 5), reveal(f, 0, 20), reveal(f, 1000, 3)]).toEqual([undefined, 21 * 28 - 280, 84])
})

test("the state of the table is in the URL", () => {
  const state = {
    hub: false,
    kind: "Deployment.apps",
    q: 'web text:"a b"',
    sort: "name desc",
    group: "cluster",
    columns: ["Name", "Up-to-date"],
  }
  expect(readState(writeState(state))).toEqual(state)
  expect(question(state, kinds)).toMatchObject({
    path: "/apis/apps/v1/deployments",
    query: "q=web+text%3A%22a+b%22&orderby=name+desc",
  })
  expect(readState("kind=Pod&cluster=oak&namespace=a b&q=web").q).toBe('cluster:oak namespace:"a b" web')
  expect(question(readState("kind=*&q=x"), kinds).path).toBe("/search")
  expect(question(readState("kind=Nope"), kinds).path).toBeUndefined()
})

test("columns: cluster and namespace, then the name, then the rest; wide ones only if chosen", () => {
  const columns = ["Cluster", "Name", "Ready", "Age", "IP"].map((name) => ({
    name,
    type: "string",
    priority: name === "IP" ? 1 : 0,
  }))
  const names = (chosen?: string[]) => shown(columns, [], chosen, { namespaced: true, kinds: false }).map((c) => c.name)
  expect(names()).toEqual(["Cluster", "Namespace", "Name", "Ready", "Age"])
  expect(names(["IP", "Name"])).toEqual(["Name", "IP"])
  expect(["", "name", "name desc"].map((s) => nextSort(s, "name"))).toEqual(["name", "name desc", ""])
})

test("colour is for states only", () => {
  expect(toneOfCell("Status", "CrashLoopBackOff")).toBe("bad")
  expect(toneOfCell("Status", "Running")).toBe("good")
  expect([toneOfCell("Ready", "1/2"), toneOfCell("Ready", "2/2")]).toEqual(["warn", "plain"])
  expect(toneOfCell("Name", "Failed")).toBe("plain")
})

test("views are saved by name, and other content of the storage is ignored", () => {
  const kept = new Map<string, string>()
  const storage = { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => void kept.set(k, v) }
  keep(storage, { name: "b", search: "kind=Pod" })
  keep(storage, { name: "a", search: "kind=Node" })
  keep(storage, { name: "b", search: "kind=Job" })
  expect(views(storage)).toEqual([
    { name: "a", search: "kind=Node" },
    { name: "b", search: "kind=Job" },
  ])
  expect(forget(storage, "a")).toHaveLength(1)
  for (const bad of ["{", "{}", "[1,null]", '[{"name":1}]']) {
    kept.set("orrery.views", bad)
    expect(views(storage)).toEqual([])
  }
})

test("actions run by cluster, a few at a time, and each is reported", async () => {
  expect(actsOf({ group: "apps", resource: "deployments" })).toContain("restart")
  expect(actsOf({ group: "x.example.com", resource: "deployments" })).toEqual(["delete"])
  const rows = ["oak", "elm", "oak"].map((cluster, i) => ({ cluster, name: `${i}` }) as never)
  expect(byCluster(rows).map(([c, r]) => [c, r.length])).toEqual([
    ["elm", 1],
    ["oak", 2],
  ])
  let running = 0
  let most = 0
  const reported: string[] = []
  const f = async (n: number) => {
    most = Math.max(most, ++running)
    await Promise.resolve()
    running--
    if (n === 3) throw new Error("no")
  }
  await forEach([1, 2, 3, 4, 5], 2, f, (n, e) => reported.push(`${n}${e ? "!" : ""}`))
  expect(most).toBe(2)
  expect(reported.sort()).toEqual(["1", "2", "3!", "4", "5"])
})

test("warnings from a header", () => {
  expect(warningsOf('299 - "left out: a, b", 299 orrery "say \\"x\\""')).toEqual(["left out: a, b", 'say "x"'])
  expect(warningsOf(null)).toEqual([])
})

test("several kinds have the actions that all of them have", () => {
  const [web, db, node] = ["deployments", "statefulsets", "nodes"].map((resource) => ({ group: resource === "nodes" ? "" : "apps", resource }))
  expect(actsOfAll([web!, db!])).toEqual(["restart", "scale", "delete"])
  expect(actsOfAll([web!, node!])).toEqual(["delete"])
  expect(actsOfAll([])).toEqual(["delete"])
})

test("rows of a search in all kinds identify their objects", () => {
  const columns = ["Cluster", "Namespace", "Kind", "API Version", "Name", "Created"].map((name) => ({ name, type: "string" }))
  const cells = ["oak", "shop", "Deployment", "apps/v1", "web", "2026-11-25T10:00:00Z"]
  const [row] = objectsOf({ columnDefinitions: columns, rows: [{ cells, object: { metadata: { name: "" } } }], metadata: {} })
  expect(row).toMatchObject({ cluster: "oak", namespace: "shop", kind: "Deployment", apiVersion: "apps/v1", name: "web", created: cells[5] })
})

const columns = (...names: string[]) => names.map((name) => ({ name, type: "string" })) as unknown as Parameters<typeof staleColumn>[0]

test("the age of the rows of events is not the age of the events", () => {
  const events = columns("Cluster", "Last Seen", "Type", "Name", "Cluster Last Seen")
  expect(staleColumn(events)).toBe(4)
  expect(staleColumn(columns("Cluster", "Last Seen", "Type", "Name"))).toBe(-1)
  expect(staleColumn(columns("Cluster", "Name", "Last Seen"))).toBe(2)
  expect(everyColumn(events, { namespaced: true, kinds: false }).filter((c) => c.name === "Last Seen")).toHaveLength(1)
})
