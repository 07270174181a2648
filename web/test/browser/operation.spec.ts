import { afterAll, beforeAll, expect, test } from "vitest"
import { apply, axe, kubectl, settled, sizes, type Visit, visit, wear, withBrowser } from "./world"

// Operations of a cluster whose hosts do not exist. The hub runs only the oldest that has not
// ended, larch-1, which is paused. So the test writes the status of larch-2, in the hub's format.
// The hub itself ends operations of yew, a cluster that does not exist.

withBrowser()

const waits = "larch-1"
const runs = "larch-2"
const hostNames = ["larch-a", "larch-b"]

const operation = (name: string, spec: object) =>
  apply(JSON.stringify({ apiVersion: "lifecycle.orrery.dev/v1alpha1", kind: "Operation", metadata: { name }, spec: { cluster: name.split("-")[0], ...spec } }))
const patch = (of: string, what: object, ...args: string[]) => kubectl("patch", ...of.split("/"), "--type=merge", "-p", JSON.stringify(what), ...args)
const record = (name: string, status: object) => patch(`operation/${name}`, { status }, "--subresource=status")
const read = (name: string, path: string) => kubectl("get", "operation", name, "-o", `jsonpath={${path}}`)
const at = (second: number) => `2026-01-02T10:00:${String(second).padStart(2, "0")}.000000Z`

const step = (host: string, id: string, state: string, second: number, more = {}) => ({
  host,
  id,
  state,
  attempt: 1,
  started: at(second),
  ...(state === "Running" ? {} : { finished: at(second + 2) }),
  ...more,
})

/** Stores a part of the record in an OperationSlice. */
async function slice(host: string, steps: object[]): Promise<void> {
  const uid = await read(runs, ".metadata.uid")
  await apply(
    JSON.stringify({
      apiVersion: "lifecycle.orrery.dev/v1alpha1",
      kind: "OperationSlice",
      metadata: {
        name: `${runs}.${host}-0123456789`,
        labels: { "lifecycle.orrery.dev/operation-uid": uid },
        ownerReferences: [{ apiVersion: "lifecycle.orrery.dev/v1alpha1", kind: "Operation", name: runs, uid }],
      },
      operation: runs,
      host,
      part: 0,
      steps,
    }),
  )
}

const reader = (name: string, resources: string[]) => [
  {
    apiVersion: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRole",
    metadata: { name },
    rules: [
      { apiGroups: ["lifecycle.orrery.dev"], resources, verbs: ["get", "list", "watch"] },
      { apiGroups: ["cluster.orrery.dev"], resources: ["clusters"], verbs: ["get", "list", "watch"] },
    ],
  },
  {
    apiVersion: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRoleBinding",
    metadata: { name },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name },
    subjects: [{ kind: "User", apiGroup: "rbac.authorization.k8s.io", name }],
  },
]

const readers = [...reader("run-reader", ["operations", "operationslices"]), ...reader("summary-reader", ["operations"])]

beforeAll(async () => {
  await apply(JSON.stringify({ apiVersion: "v1", kind: "List", items: readers }))
  await apply("{apiVersion: cluster.orrery.dev/v1alpha1, kind: Cluster, metadata: {name: larch}, spec: {syncMode: Pull}}")
  await operation(waits, { action: "Apply", paused: true })
  // The hub reads it before the Cluster has hosts, and so creates no operation of its own.
  await kubectl("wait", "--for=jsonpath={.status.phase}=Paused", `operation/${waits}`, "--timeout=180s")
  await operation(runs, { action: "Apply" })
  const roleGroups = { "control-plane": ["larch-a"], worker: hostNames }
  const hosts = hostNames.map((name, i) => ({ name, address: `192.0.2.${i + 1}` }))
  await patch("cluster/larch", { spec: { provision: { hosts, roleGroups, kubernetes: { version: "v1.36.3" } } } })
  await record(runs, {
    phase: "Running",
    planHash: "4f2f71f",
    attempt: 1,
    started: at(0),
    stepsDone: 1,
    stepsTotal: 4,
    plan: [
      { hosts: ["larch-a"], changes: ["~ File /etc/kubernetes/kubelet.yaml [restart]", "+ Unit kubelet.service", "- File /etc/cni/old.conf"], left: 2 },
      { hosts: ["cluster"], changes: ["* Drain larch-b [drain]"] },
    ],
    hosts: [
      { name: "larch-a", state: "Running", stage: "kubelet", done: 1, total: 3 },
      { name: "larch-b", state: "Pending", total: 1 },
    ],
    steps: [step("larch-a", "kubelet/config", "Running", 5)],
  })
  await slice("larch-a", [step("larch-a", "os/sysctl", "Changed", 1)])
})

afterAll(async () => {
  // The Cluster first: otherwise the hub would create an operation for it.
  await kubectl("delete", "cluster", "larch", "--ignore-not-found")
  await kubectl("delete", "operations", waits, runs, "yew-1", "yew-2", "--ignore-not-found")
  await kubectl("delete", "clusterroles,clusterrolebindings", "run-reader", "summary-reader", "--ignore-not-found")
})

const host = (v: Visit, section: string, name: string) =>
  v.page.locator("section.section", { has: v.page.getByRole("heading", { name: section }) }).locator(".host", { hasText: name })
const buttons = (v: Visit) => v.page.locator(".page-actions").getByRole("button").allTextContents()
const phase = (v: Visit, word: string) => v.page.locator(".page-about .mark", { hasText: word }).waitFor()
/** The tone and the text of each line of a list. */
const lines = (v: Visit, section: string, name: string) =>
  host(v, section, name)
    .locator("li")
    .evaluateAll((all) => all.map((li) => [li.querySelector(".mark")?.classList[1], li.querySelector(".mono")?.textContent ?? li.textContent].join(" ")))

test("an operation is found in the list, its plan is shown as a diff, and its steps appear when they are recorded", async () => {
  const v = await visit()
  await v.go("/operations")
  await v.page
    .getByRole("row", { name: /larch-2/ })
    .getByText("1 / 4")
    .waitFor()
  await v.page.getByRole("link", { name: runs }).click()
  await phase(v, "Running")
  await host(v, "Plan", "larch-a").locator("summary").click()
  await host(v, "Plan", "larch-a").getByText("5 changes").waitFor()
  await expect
    .poll(() => lines(v, "Plan", "larch-a"))
    .toEqual(["warn ~ File /etc/kubernetes/kubelet.yaml [restart]", "good + Unit kubelet.service", "bad - File /etc/cni/old.conf", " and 2 more"])
  await host(v, "Plan", "the cluster's API").locator("summary").click()
  await expect.poll(() => lines(v, "Plan", "the cluster's API")).toEqual(["plain * Drain larch-b [drain]"])
  await expect.poll(() => lines(v, "Hosts", "larch-a")).toEqual(["good os/sysctl", "warn kubelet/config"])

  await record(runs, {
    stepsDone: 2,
    hosts: [
      { name: "larch-a", state: "Failed", stage: "kubelet", done: 2, total: 3, message: "kubelet did not start" },
      { name: "larch-b", state: "Running", stage: "os", total: 1 },
    ],
    steps: [
      step("larch-a", "kubelet/config", "Changed", 5),
      step("larch-a", "kubelet/start", "Failed", 8, { attempt: 3, message: "exit status 1\nno such cgroup" }),
      step("larch-b", "os/sysctl", "Running", 9),
    ],
  })
  // Without reloading the page.
  await host(v, "Hosts", "larch-a").getByText("no such cgroup").waitFor()
  await expect.poll(() => lines(v, "Hosts", "larch-a")).toEqual(["good os/sysctl", "good kubelet/config", "bad kubelet/start"])
  await expect.poll(() => lines(v, "Hosts", "larch-b")).toEqual(["warn os/sysctl"])
  await expect.poll(() => host(v, "Hosts", "larch-a").textContent()).toMatch(/kubelet did not start.*attempt 3/s)
  await v.page.getByText("2 / 4").waitFor()
  expect(v.seen).toMatchObject({ errors: [], failures: [] })
})

test("pause and resume change the operation's spec, and the page shows the effect", async () => {
  const v = await visit()
  await v.go(`/operations/${runs}`)
  await v.page.getByRole("button", { name: "Pause" }).click()
  await v.page.getByText("The operation pauses when the running steps have ended").waitFor()
  expect(await read(runs, ".spec")).toContain('"paused":true')
  await v.page.getByRole("button", { name: "Resume" }).click()
  await v.page.getByRole("button", { name: "Pause" }).waitFor()
  expect(await read(runs, ".spec")).not.toContain('"paused":true')
  await expect.poll(() => v.page.getByText("The operation pauses when").count()).toBe(0)
  expect(v.seen.failures).toEqual([])
})

test("a paused operation is canceled only after a confirmation", async () => {
  await operation("yew-1", { action: "Apply", paused: true })
  const v = await visit()
  await v.go("/operations/yew-1")
  await phase(v, "Paused")
  const ask = v.page.getByRole("button", { name: "Cancel" })
  await ask.click()
  const dialog = v.page.getByRole("dialog", { name: /End yew-1/ })
  await dialog.getByText("what was done stays").waitFor()
  expect(await axe(v.page)).toEqual([])
  await v.page.keyboard.press("Escape")
  await dialog.waitFor({ state: "detached" })
  expect(await read("yew-1", ".spec.canceled")).toBe("")
  await ask.click()
  await dialog.getByRole("button", { name: "End it" }).click()
  await phase(v, "Canceled")
  expect(await read("yew-1", ".spec.canceled")).toBe("true")
  await expect.poll(() => buttons(v)).toEqual([])
})

test("a failed operation shows the reason, and no retry if the hub will not try it again", async () => {
  await operation("yew-2", { action: "Apply", paused: true })
  const v = await visit()
  await v.go("/operations/yew-2")
  await v.page.getByRole("button", { name: "Resume" }).click()
  await phase(v, "Failed")
  await v.page.getByRole("alert").getByText("there is no Cluster yew").waitFor()
  await expect.poll(() => buttons(v)).toEqual([])
})

test("the page of the cluster shows when certificates expire, beside its hosts and operations", async () => {
  const due = "certificate apiserver of larch-a ends at 2026-12-24T12:00:00Z; the hub renews it"
  const conditions = JSON.parse(await kubectl("get", "cluster", "larch", "-o", "jsonpath={.status.conditions}"))
  const expiring = { type: "CertificatesExpiring", status: "True", reason: "ExpiringSoon", message: due, lastTransitionTime: "2026-01-02T10:00:00Z" }
  const provision = { version: "v1.36.2", certificatesExpire: "2026-12-24T12:00:00Z", nodes: [{ hostname: "larch-a", roles: ["control-plane"] }] }
  await patch("cluster/larch", { status: { provision, conditions: [...conditions, expiring] } }, "--subresource=status")
  const v = await visit()
  await v.go("/clusters/larch?tab=hosts")
  await v.page.getByText(due).waitFor()
  expect(await v.page.locator(".facts div", { hasText: "First certificate expires" }).textContent()).toMatch(/24 Dec.* 2026/)
  const hosts = v.page.getByRole("region", { name: "Hosts" })
  expect(await hosts.getByRole("row", { name: /larch-a/ }).textContent()).toMatch(/192\.0\.2\.1.*in the cluster/)
  expect(await hosts.getByRole("row", { name: /larch-b/ }).textContent()).toMatch(/192\.0\.2\.2.*to be added/)
  await v.page.getByRole("link", { name: waits }).waitFor()
  expect(await axe(v.page)).toEqual([])
})

test.each([
  ["a user who may read slices sees all steps", "run-reader", true],
  ["a user who may read only operations sees a summary", "summary-reader", false],
])("%s, has no button, and sends no request that is refused", async (_, user, steps) => {
  const v = await visit(user)
  await v.go(`/operations/${runs}`)
  await phase(v, "Running")
  await v.page.waitForLoadState("networkidle")
  await v.page.getByText("kubelet/start").waitFor()
  await expect.poll(() => v.page.locator("main").getByText("os/sysctl").count()).toBe(steps ? 2 : 1)
  await expect.poll(() => buttons(v)).toEqual([])
  expect(v.seen).toMatchObject({ errors: [], failures: [] })
})

test("a user who may read no operation sees that, and the page requests none", async () => {
  const v = await visit("alice")
  for (const path of ["/operations", `/operations/${runs}`]) {
    await v.go(path)
    await v.page.getByText("You may not see operations").waitFor()
    await v.page.waitForLoadState("networkidle")
  }
  expect(v.seen).toMatchObject({ errors: [], failures: [] })
  expect(v.seen.bodies.filter((b) => b.startsWith("/console/api/hub/apis/lifecycle"))).toEqual([])
})

test.each(["light", "dark"] as const)("axe finds nothing wrong with an operation, in %s on a phone", async (theme) => {
  const v = await visit(undefined, sizes.phone)
  await wear(v.page, theme)
  await v.go(`/operations/${runs}`)
  await settled(v.page)
  await phase(v, "Running")
  const closed = v.page.locator("details:not([open]) summary")
  while (await closed.count()) await closed.first().click()
  expect(await axe(v.page)).toEqual([])
  expect(await v.page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0)
})
