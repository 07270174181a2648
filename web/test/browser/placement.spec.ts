import { test } from "vitest"
import { apply, expect, kubeconfig, kubectl, run, settled, visit, withBrowser } from "./world"

withBrowser()

const of = "Deployment.apps/shop/web"

test("one workload in all of its clusters, with overrides and drift", async () => {
  const v = await visit()
  await v.go(`/placements?of=${of}`)
  const row = (cluster: string) => v.page.locator(".matrix tbody tr", { hasText: cluster })
  await row("oak").waitFor()
  await expect.poll(() => v.page.locator(".matrix tbody tr").count()).toBe(2)
  await row("pine").getByRole("link", { name: "mirror-in-pine" }).waitFor()
  await row("oak").getByText("2 / 2").waitFor()
  await row("pine").getByRole("button", { name: "Diff of rendered and live in pine" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("+ status:", { exact: true }).waitFor()
})

test("why it is there, and not elsewhere: the stored decision in words", async () => {
  const v = await visit()
  await v.go(`/why?of=${of}`)
  await v.page.getByText("Placed", { exact: true }).first().waitFor()
  const out = v.page.locator(".why-list li", { hasText: "birch" })
  await out.getByText("The policy does not select this cluster.").waitFor()
  await v.page.getByRole("link", { name: "web", exact: true }).first().waitFor()
  await v.page.getByText("Decided").waitFor()
  await v.go("/why?of=Service/default/kubernetes")
  await v.page.getByText("No policy may place it", { exact: true }).waitFor()
})

test("the reason for no placement is shown once, above the clusters", async () => {
  await apply(
    `{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: nowhere, namespace: shop}},
    {apiVersion: policy.orrery.dev/v1alpha1, kind: PropagationPolicy, metadata: {name: nowhere, namespace: shop}, spec: {
    resourceSelectors: [{apiVersion: v1, kind: ConfigMap, name: nowhere}], placement: {clusterAffinity: {clusterNames: [maple]}}}}]}`,
  )
  const v = await visit()
  await v.go("/why?of=ConfigMap/shop/nowhere")
  await v.page.locator(".why-list li", { hasText: "maple" }).getByText("No cluster has this name.").waitFor()
  const body = (await v.page.locator("#content").textContent()) ?? ""
  expect(body.split("selects no cluster of the fleet").length - 1).toBe(1)
  expect(body.split("no cluster of the fleet has this name").length - 1).toBe(1)
  await kubectl("-n", "shop", "delete", "propagationpolicy/nowhere", "configmap/nowhere")
})

test("changes in the fleet, one row for the same change in several clusters", async () => {
  await kubectl("-n", "shop", "annotate", "deployment", "web", `example.com/at=${Date.now()}`, "--overwrite")
  const v = await visit()
  await v.go("/changes?type=deployments.apps")
  const change = v.page.locator(".change", { hasText: "web" }).first()
  await change.waitFor()
  await change.getByText("oak").waitFor()
  await change.getByText("pine").waitFor()
})

test("a policy is edited by form: its preview shows the clusters, a conflict names its owner, and other fields stay", async () => {
  await apply(
    `{apiVersion: policy.orrery.dev/v1alpha1, kind: PropagationPolicy, metadata: {name: edited, namespace: shop}, spec: {priority: 5,
    resourceSelectors: [{apiVersion: v1, kind: Service, name: none}], placement: {clusterAffinity: {clusterNames: [oak], exclude: [birch]},
    clusterTolerations: [{key: k, operator: Exists, tolerationSeconds: 7}]}}}`,
    "--server-side",
    "--field-manager=gitops",
  )
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=shop&name=edited")
  await v.page.locator(".preview li[data-placed=true]", { hasText: "oak" }).waitFor()
  const clusters = v.page.getByRole("textbox", { name: "Clusters" }).first()
  await clusters.fill("oak, pine")
  await v.page.locator(".preview li[data-placed=true]", { hasText: "pine" }).waitFor()
  await v.page.getByRole("spinbutton", { name: "Priority" }).fill("7")
  await v.page.getByRole("button", { name: "Review and save" }).click()
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText("gitops").first().waitFor()
  await dialog
    .getByRole("radio", { name: /Change to/ })
    .first()
    .check()
  await dialog.getByRole("button", { name: "Save" }).click()
  await dialog.waitFor({ state: "detached" })
  const saved = JSON.parse(await kubectl("-n", "shop", "get", "propagationpolicy", "edited", "-o", "json"))
  expect(saved.spec.priority).toBe(7)
  expect(saved.spec.placement).toMatchObject({
    clusterAffinity: { clusterNames: ["oak", "pine"], exclude: ["birch"] },
    clusterTolerations: [{ key: "k", operator: "Exists", tolerationSeconds: 7 }],
  })
  await kubectl("-n", "shop", "delete", "propagationpolicy", "edited")
})

test("a new policy is created by form", async () => {
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=shop")
  await v.page.getByRole("textbox", { name: "Name" }).first().fill("made-by-form")
  await v.page.getByRole("textbox", { name: "Clusters" }).first().fill("oak")
  await v.page.getByRole("button", { name: "Review and save" }).click()
  await v.page.getByRole("dialog").getByRole("button", { name: "Create" }).click()
  await v.page.getByRole("heading", { level: 1, name: "made-by-form" }).waitFor()
  expect(await kubectl("-n", "shop", "get", "propagationpolicy", "made-by-form", "-o", "jsonpath={.spec.placement.clusterAffinity.clusterNames}")).toBe(
    '["oak"]',
  )
  await v.page.getByRole("button", { name: "Delete" }).click()
  await v.page.getByRole("dialog").getByRole("button", { name: "Delete" }).click()
  await v.page.getByRole("heading", { level: 1, name: "Policies" }).waitFor()
})

test("the command that joins a cluster, and the progress of the join", async () => {
  const v = await visit()
  await v.go("/join")
  await v.page.getByRole("textbox", { name: "Name" }).fill("elm")
  await v.page.getByText("Waiting for the command to be run").waitFor()
  const line = await v.page.getByTestId("command").textContent()
  expect(line).toBe("orrery cluster join elm --pull --agent-process | kubectl apply -f -")
  const [, , , ...flags] = (line ?? "").split(" | ")[0]?.split(" ") ?? []
  await run(["cluster", "join", ...flags, "--kubeconfig", kubeconfig, "--timeout", "10m"])
  await v.page.getByText("The hub knows the cluster").waitFor()
  await v.page.getByText("Waiting for the agent to connect with its token").waitFor()
  await v.page.getByRole("textbox", { name: "Name" }).fill("hub")
  await v.page.getByText("means something else").waitFor()
  await run(["cluster", "unjoin", "elm", "--kubeconfig", kubeconfig, "--timeout", "10m"])
  await settled(v.page)
})
