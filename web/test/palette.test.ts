import { expect, test } from "vitest"
import type { Kind } from "../src/hub/kinds"
import { actions, register } from "../src/palette/actions"
import { command, kindsLike } from "../src/palette/command"
import { like, linkOf } from "../src/palette/hub"
import { meaning, nameOf } from "../src/palette/keys"

const kind = (name: string, group: string, short: string[], namespaced = true): Kind => ({
  group,
  version: "v1",
  resource: `${name.toLowerCase()}s`,
  singular: name.toLowerCase(),
  kind: name,
  shortNames: short,
  categories: [],
  namespaced,
  verbs: ["list"],
  subresources: [],
  of: group ? `${name}.${group}` : name,
})
const kinds = [kind("Deployment", "apps", ["deploy"]), kind("Node", "", ["no"], false), kind("Pod", "", ["po"]), kind("PodMonitor", "m.io", [])]

test("commands of k9s lead to tables", () => {
  expect(command(":deploy shop", kinds)?.href).toBe("/table?kind=Deployment.apps&q=namespace%3Ashop")
  expect(command("po shop @oak /web", kinds)?.href).toBe("/table?kind=Pod&q=namespace%3Ashop+cluster%3Aoak+web")
  expect(command("po app=web", kinds)?.href).toBe("/table?kind=Pod&q=app%3Dweb")
  expect(command("no shop", kinds)?.href).toBe("/table?kind=Node")
  expect(command("ctx", kinds)?.href).toBe("/")
  expect(command("ctx oak", kinds)?.href).toBe("/clusters/oak")
  expect(command("nothing here", kinds)).toBeUndefined()
  expect(command("", kinds)).toBeUndefined()
})

test("kinds by the beginning of a name, whole names first", () => {
  expect(kindsLike(kinds, "po").map((k) => k.of)).toEqual(["Pod", "PodMonitor.m.io"])
  expect(kindsLike(kinds, "deploy").map((k) => k.of)).toEqual(["Deployment.apps"])
  expect(kindsLike(kinds, "zzz")).toEqual([])
})

test("objects of the hub: those that begin with what is typed first, and pages of kinds' own", () => {
  const named = (of: Kind, name: string, namespace = "") => ({ kind: of, namespace, name })
  const [deploy, policy, run] = [kinds[0]!, kind("PropagationPolicy", "policy.orrery.dev", []), kind("Operation", "lifecycle.orrery.dev", [], false)]
  const all = [named(deploy, "my-web", "shop"), named(policy, "web-all", "shop"), named(run, "web"), named(deploy, "db", "shop")]
  expect(like(all, "We").map((n) => n.name)).toEqual(["web", "web-all", "my-web"])
  expect(like(all, "web", 1).map(linkOf)).toEqual(["/operations/web"])
  expect(linkOf(all[0]!)).toBe("/object?of=Deployment.apps%2Fshop%2Fmy-web")
  expect(linkOf(all[1]!)).toBe("/policies?kind=PropagationPolicy&namespace=shop&name=web-all")
})

test("one key, or two that follow one another", () => {
  const run = () => {}
  const all = [
    { id: "a", title: "", keys: "g t", run },
    { id: "b", title: "", keys: "t", run },
    { id: "c", title: "", keys: "ctrl+d", run },
  ]
  expect(meaning(all, "", "g")).toEqual({ pending: "g" })
  expect(meaning(all, "g", "t").action?.id).toBe("a")
  expect(meaning(all, "", "t").action?.id).toBe("b")
  expect(meaning(all, "g", "x")).toEqual({ pending: "" })
  expect(nameOf({ key: "D", ctrlKey: true, metaKey: false, altKey: false })).toBe("ctrl+d")
  expect(meaning(all, "", "d")).toEqual({ pending: "" })
})

test("what a screen registers goes before what is everywhere, and goes with it", () => {
  const everywhere = register([{ id: "x", title: "everywhere", keys: "d", run: () => {} }])
  const screen = register([{ id: "y", title: "screen", keys: "d", run: () => {} }])
  expect(meaning(actions(), "", "d").action?.id).toBe("y")
  screen()
  expect(meaning(actions(), "", "d").action?.id).toBe("x")
  everywhere()
  expect(actions()).toEqual([])
})
