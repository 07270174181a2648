import { readFileSync } from "node:fs"
import { expect, test } from "vitest"
import type { Kind } from "../src/hub/kinds"
import { places } from "../src/layout/places"
import { actions, register } from "../src/palette/actions"
import { command, kindsLike, verbOf } from "../src/palette/command"
import { like, linkOf } from "../src/palette/hub"
import { meaning, nameOf } from "../src/palette/keys"
import { moveTo } from "../src/palette/rows"

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

test("objects of the hub: names that begin with the text come first, and kinds with their own pages link to them", () => {
  const named = (of: Kind, name: string, namespace = "") => ({ kind: of, namespace, name })
  const [deploy, policy, run] = [kinds[0]!, kind("PropagationPolicy", "policy.orrery.dev", []), kind("Operation", "lifecycle.orrery.dev", [], false)]
  const all = [named(deploy, "my-web", "shop"), named(policy, "web-all", "shop"), named(run, "web"), named(deploy, "db", "shop")]
  expect(like(all, "We").map((n) => n.name)).toEqual(["web", "web-all", "my-web"])
  expect(like(all, "web", 1).map(linkOf)).toEqual(["/operations/web"])
  expect(linkOf(all[0]!)).toBe("/object?of=Deployment.apps%2Fshop%2Fmy-web")
  expect(linkOf(all[1]!)).toBe("/policies?kind=PropagationPolicy&namespace=shop&name=web-all")
})

test("single keys, and sequences of two keys", () => {
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

test("an action of a screen has precedence over a global one, until the screen is left", () => {
  const everywhere = register([{ id: "x", title: "everywhere", keys: "d", run: () => {} }])
  const screen = register([{ id: "y", title: "screen", keys: "d", run: () => {} }])
  expect(meaning(actions(), "", "d").action?.id).toBe("y")
  screen()
  expect(meaning(actions(), "", "d").action?.id).toBe("x")
  everywhere()
  expect(actions()).toEqual([])
})

test("a verb applies to the name that follows it", () => {
  expect(verbOf("why shop/Web")).toEqual({ act: "why", name: "web" })
  expect(verbOf("Uncordon oak")).toEqual({ act: "uncordon", name: "oak" })
  expect(verbOf("cordon")).toEqual({ act: "cordon", name: "" })
  expect(["cordoned", "whyever", "a why", ""].map(verbOf)).toEqual([undefined, undefined, undefined, undefined])
})

test("a key of a screen has precedence over the same global key, even if that was registered later", () => {
  const action = (id: string) => ({ id, title: id, keys: "j", run: () => {} })
  const ends = [register([action("page")]), register([action("everywhere")], true)]
  expect(actions().map((a) => a.id)).toEqual(["page", "everywhere"])
  expect(meaning(actions(), "", "j").action?.id).toBe("page")
  for (const end of ends) end()
})

test("the navigation and the palette have every page that needs no object", () => {
  const app = readFileSync("src/app.tsx", "utf8")
  const routes = [...app.matchAll(/\["(\/[^"]*)", \(\) => import/g)].map(([, path]) => path!.replace("/*?", ""))
  const ofObjects = ["/object", "/why", "/clusters/:name"]
  expect(places.map((p) => p.href).sort()).toEqual(routes.filter((path) => !ofObjects.includes(path)).sort())
  expect(new Set(places.map((p) => p.keys)).size).toBe(places.length)
})

test("the focus moves among the rows of a list", () => {
  expect([moveTo("next", -1, 3), moveTo("next", 2, 3), moveTo("before", 2, 3), moveTo("before", -1, 3)]).toEqual([0, 2, 1, 0])
  expect([moveTo("first", 2, 3), moveTo("last", -1, 3), moveTo("next", -1, 0)]).toEqual([0, 2, -1])
})
