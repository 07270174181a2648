import { describe, expect, test } from "vitest"
import { axe, kubeconfig, kubectl, rewrite, run, settled, visit, withBrowser, writable } from "./world"

withBrowser()

const cluster = "oak"
// Unique names: a demo that keeps running has objects of earlier runs.
const clash = `clash-${Date.now()}`
const hush = `hush-${Date.now()}`
const inOak = (...args: string[]) => run(["kubectl", "--kubeconfig", kubeconfig, "--context", cluster, ...args])
const applyInOak = (manifest: string, ...args: string[]) =>
  run(["kubectl", "--kubeconfig", kubeconfig, "--context", cluster, "apply", "-f", "-", ...args], manifest)

const of = (kind: string, name: string, more = "") => `/object?cluster=${cluster}&of=${encodeURIComponent(`${kind}/default/${name}`)}${more}`

const workload = (name: string, replicas = 1) => `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ${name}, namespace: default, labels: {app: ${name}}}
spec:
  replicas: ${replicas}
  selector: {matchLabels: {app: ${name}}}
  template:
    metadata: {labels: {app: ${name}}}
    spec: {containers: [{name: web, image: "registry.example.com/web:1"}]}
`

/** Waits until oak's Deployment controller has set its annotation, which is a change, too. */
const revised = (name: string) =>
  inOak("-n", "default", "wait", "--for=jsonpath={.metadata.annotations.deployment\\.kubernetes\\.io/revision}=1", `deployment/${name}`, "--timeout=180s")

describe("the object's page", () => {
  test("shows each tab of an object, clean for axe and without an error", async () => {
    const v = await visit()
    await applyInOak(workload("tabs"))
    await v.go(of("Deployment.apps", "tabs"))
    for (const tab of ["Overview", "YAML", "Events", "Relations", "Logs", "Shell", "History"]) {
      await v.page.getByRole("tab", { name: tab }).click()
      await settled(v.page)
      expect(await axe(v.page), tab).toEqual([])
    }
    // axe is first tried as a script element, which the page's Content-Security-Policy refuses.
    expect(v.seen.errors.filter((e) => !e.includes("script-src"))).toEqual([])
  })

  test("shows a change when it happens, not at the next poll", async () => {
    const v = await visit()
    await inOak("-n", "default", "create", "configmap", `${hush}-live`, "--from-literal=first=1")
    await v.page.clock.install()
    await v.go(of("ConfigMap", `${hush}-live`))
    await v.page.getByText("first").first().waitFor()
    // With the clock paused, the page sends no periodic request.
    await v.page.clock.pauseAt(Date.now() + 20_000)
    await inOak("-n", "default", "patch", "configmap", `${hush}-live`, "--patch", '{"data":{"second":"2"}}')
    await v.page.getByText("second").first().waitFor()
    await inOak("-n", "default", "delete", "configmap", `${hush}-live`)
  })

  test("merges an edit with what another client changed meanwhile, and takes over only the chosen fields", async () => {
    const v = await visit()
    await applyInOak(workload(clash, 2), "--server-side", "--field-manager", "first")
    await revised(clash)
    await v.go(of("Deployment.apps", clash, "&tab=yaml"))
    await rewrite(v, "replicas: 2", "replicas: 5")
    await rewrite(v, "registry.example.com/web:1", "registry.example.com/web:2")
    // Meanwhile another client sets the same field, and one of its own.
    await inOak("-n", "default", "patch", "deployment", clash, "--field-manager", "other-client", "-p", '{"spec":{"replicas":3,"paused":true}}')
    await v.page.getByRole("button", { name: "Review changes" }).click()
    const dialog = v.page.getByRole("dialog")
    await dialog.getByText("Merged: 1 field").waitFor()
    expect(await dialog.getByRole("group", { name: /spec.replicas/ }).textContent()).toContain("other-client")
    expect(await dialog.getByRole("group", { name: /image/ }).textContent()).toContain("first")
    expect(await axe(v.page)).toEqual([])
    const save = dialog.getByRole("button", { name: "Save" })
    expect(await save.isDisabled()).toBe(true)
    await dialog.getByRole("group", { name: /image/ }).getByLabel("Change to", { exact: true }).check()
    await dialog
      .getByRole("group", { name: /spec.replicas/ })
      .getByLabel("Keep", { exact: true })
      .click()
    await dialog.getByRole("group", { name: /spec.replicas/ }).waitFor({ state: "detached" })
    await save.click()
    await dialog.waitFor({ state: "detached" })
    const now = JSON.parse(await inOak("-n", "default", "get", "deployment", clash, "-o", "json", "--show-managed-fields"))
    expect(now.spec).toMatchObject({ replicas: 3, paused: true })
    expect(now.spec.template.spec.containers[0].image).toBe("registry.example.com/web:2")
    const ours = now.metadata.managedFields.find((m: { manager: string }) => m.manager === "orrery-console")
    expect(ours.operation).toBe("Apply")
    expect(JSON.stringify(ours.fieldsV1)).not.toContain("f:replicas")
  })

  test("shows what the API server refuses, and changes nothing", async () => {
    const v = await visit()
    await applyInOak(workload("invalid"))
    await revised("invalid")
    await v.go(of("Deployment.apps", "invalid", "&tab=yaml"))
    await rewrite(v, "replicas: 1", "replicaz: 1")
    await v.page.getByRole("button", { name: "Review changes" }).click()
    const dialog = v.page.getByRole("dialog")
    await dialog
      .getByText(/replicaz/)
      .first()
      .waitFor()
    expect(await dialog.getByRole("button", { name: "Save" }).isDisabled()).toBe(true)
    expect(await inOak("-n", "default", "get", "deployment", "invalid", "-o", "jsonpath={.spec.replicas}")).toBe("1")
  })

  test("scales with the keyboard alone", async () => {
    const v = await visit()
    await applyInOak(workload("scaled"), "--server-side", "--field-manager", "orrery-console")
    await v.go(of("Deployment.apps", "scaled"))
    // The key works once the right to write is known, like the button.
    await writable(v.page)
    await v.page.keyboard.press("Shift+S")
    await v.page.getByLabel("Replicas").fill("4")
    await v.page.keyboard.press("Enter")
    const save = v.page.getByRole("dialog").getByRole("button", { name: "Save" })
    await expect.poll(() => save.isEnabled()).toBe(true)
    await save.focus()
    await v.page.keyboard.press("Enter")
    await expect.poll(() => inOak("-n", "default", "get", "deployment", "scaled", "-o", "jsonpath={.spec.replicas}")).toBe("4")
  })

  test("shows the history of an object, restores an earlier state, and finds deleted objects", async () => {
    const v = await visit()
    const name = `past-${Date.now()}`
    const config = (value: string) => `{apiVersion: v1, kind: ConfigMap, metadata: {name: ${name}, namespace: default}, data: {colour: ${value}}}`
    await applyInOak(config("red"), "--server-side", "--field-manager", "painter")
    await known(name, "red")
    await applyInOak(config("blue"), "--server-side", "--force-conflicts", "--field-manager", "decorator")
    await known(name, "blue")
    await v.go(of("ConfigMap", name, "&tab=history"))
    await v.page.getByText("data.colour").first().waitFor()
    expect(await v.page.locator("main").textContent()).not.toContain("decorator")
    await v.page.getByRole("button", { name: "Field managers" }).click()
    await v.page.getByText("decorator").first().waitFor()
    await v.page.getByRole("slider").press("ArrowLeft")
    await v.page.getByText("Change 1 of 2").waitFor()
    await v.page.getByRole("button", { name: "Roll back to this" }).click()
    const dialog = v.page.getByRole("dialog")
    await dialog.getByLabel("Change to", { exact: true }).check()
    await dialog.getByRole("button", { name: "Save" }).click()
    await expect.poll(() => inOak("-n", "default", "get", "configmap", name, "-o", "jsonpath={.data.colour}")).toBe("red")
    await dialog.waitFor({ state: "detached" })

    await v.page.keyboard.press("Control+d")
    await v.page.getByRole("dialog").getByText("in the cluster oak").waitFor()
    await v.page.getByRole("dialog").getByRole("button", { name: "Delete" }).click()
    await v.page.waitForURL(/\/table/)
    await expect.poll(() => inOak("-n", "default", "get", "configmap", name, "--ignore-not-found", "-o", "name")).toBe("")
    await expect
      .poll(async () => {
        await v.go(`/object?deleted=ConfigMap&cluster=${cluster}&namespace=default`)
        await settled(v.page)
        return v.page.locator("main").textContent()
      })
      .toContain(name)
    await v.page.getByRole("link", { name }).click()
    await v.page.getByText("Object not found").waitFor()
    await v.page.getByRole("slider").waitFor()
  })

  test("a Pod that fits no node has a state, and its containers are not started", async () => {
    await applyInOak(
      "{apiVersion: v1, kind: Pod, metadata: {name: unplaced, namespace: default}, spec: {nodeSelector: {is: nowhere}, containers: [{name: main, image: x}]}}",
    )
    const v = await visit()
    await v.go(of("Pod", "unplaced"))
    await v.page
      .locator(".page-about")
      .getByText(/^Pending/)
      .waitFor()
    const row = v.page.getByRole("region", { name: "Containers" }).getByRole("row", { name: /main/ })
    await row.getByText("Not started").waitFor()
    expect(await row.textContent()).not.toContain("Unknown")
    await inOak("-n", "default", "delete", "pod", "unplaced", "--force")
  })

  test("shows the current object as YAML", async () => {
    await applyInOak("{apiVersion: v1, kind: ConfigMap, metadata: {name: moving, namespace: default}, data: {at: first}}")
    const v = await visit()
    await v.go(of("ConfigMap", "moving", "&tab=yaml"))
    await v.page.getByText("at: first").waitFor()
    await applyInOak("{apiVersion: v1, kind: ConfigMap, metadata: {name: moving, namespace: default}, data: {at: second}}")
    await v.page.getByText("at: second").waitFor()
  })

  test("deletes the object that was shown, not one created later with its name", async () => {
    const map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: again, namespace: default}}"
    await applyInOak(map)
    const v = await visit()
    await v.go(of("ConfigMap", "again"))
    await writable(v.page)
    await v.page.keyboard.press("Control+d")
    const button = v.page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true })
    await v.page.getByRole("dialog").getByText("oak").first().waitFor()
    await expect.poll(() => button.isEnabled()).toBe(true) // the dry run is answered
    await inOak("-n", "default", "delete", "configmap", "again")
    await applyInOak(map)
    await button.click()
    await v.page.getByRole("dialog").getByText("UID in the precondition").waitFor()
    expect(await inOak("-n", "default", "get", "configmap", "again", "-o", "name")).toContain("again")
  })

  test("creates an object from YAML, but does not overwrite one", async () => {
    const v = await visit()
    const name = `made-${Date.now()}`
    await v.go(`/object?kind=ConfigMap&cluster=${cluster}&namespace=default`)
    await rewrite(v, "name: ", `name: ${name}`)
    await v.page.getByRole("button", { name: "Review changes" }).click()
    await v.page.getByRole("dialog").getByRole("button", { name: "Create" }).click()
    await expect.poll(() => inOak("-n", "default", "get", "configmap", name, "-o", "name")).toContain(name)
    await v.go(`/object?kind=ConfigMap&cluster=${cluster}&namespace=default`)
    await rewrite(v, "name: ", `name: ${name}`)
    await v.page.getByRole("button", { name: "Review changes" }).click()
    await v.page.getByText("There is an object of this name already").waitFor()
  })

  test("pastes styled content of another page as plain text, within the page's Content-Security-Policy", async () => {
    const v = await visit()
    const other = await v.context.newPage()
    await other.setContent('<pre style="color: red">kind: <span style="color: blue">Service</span></pre>')
    await other.keyboard.press("Control+a")
    await other.keyboard.press("Control+c")
    await v.page.bringToFront()
    await v.go(`/object?kind=ConfigMap&cluster=${cluster}&namespace=default`)
    const editor = v.page.getByRole("textbox", { name: /New object/ })
    await editor.click()
    await v.page.keyboard.press("Control+a")
    await v.page.keyboard.press("Control+v")
    await expect.poll(() => editor.textContent()).toContain("kind: Service")
    expect(await editor.locator("[style*=color]").count()).toBe(0)
    expect(v.seen.errors).toEqual([])
  })

  test("executes nothing that objects contain", async () => {
    const v = await visit()
    const evil = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    const hostile = {
      apiVersion: "v1",
      kind: "ConfigMap",
      metadata: {
        name: "hostile.img-src-x",
        namespace: "default",
        annotations: {
          "example.com/evil": evil,
          "example.com/link": "javascript:window.hacked=1",
          "example.com/turned": "\u202eright\u0007",
        },
      },
      data: { ["__proto__"]: "x", constructor: "y", "page.html": evil, terminal: "\u001b]0;title\u0007\u001b[31mred" },
    }
    await applyInOak(JSON.stringify(hostile))
    for (const tab of ["overview", "yaml", "events", "relations", "history"]) {
      await v.go(of("ConfigMap", "hostile.img-src-x", `&tab=${tab}`))
      await settled(v.page)
    }
    await v.go(of("ConfigMap", "hostile.img-src-x"))
    await v.page.getByText("example.com/evil").waitFor()
    expect(await v.page.locator("main").textContent()).toContain("onerror")
    await v.go(`/object?cluster=${cluster}&of=${encodeURIComponent(`${evil}/default/${evil}`)}`)
    await v.go(`/object?cluster=${encodeURIComponent("../../x")}&of=ConfigMap/default/x`)
    expect(await v.page.evaluate(() => "hacked" in window)).toBe(false)
    expect(await v.page.locator("main img, main script").count()).toBe(0)
  })

  test("does not request a Secret's data before the user asks for it", async () => {
    const v = await visit()
    await applyInOak(`{apiVersion: v1, kind: Secret, metadata: {name: ${hush}, namespace: default}, stringData: {word: open-sesame}}`)
    const encoded = Buffer.from("open-sesame").toString("base64")
    await v.go(of("Secret", hush))
    await settled(v.page)
    expect(v.seen.bodies.join()).not.toContain(encoded)
    await v.page.getByRole("button", { name: "Show keys" }).click()
    await v.page.getByRole("button", { name: "Show word" }).waitFor()
    expect(await v.page.locator("main").textContent()).not.toContain("open-sesame")
    await v.page.getByRole("button", { name: "Show word" }).click()
    await v.page.getByText("open-sesame").waitFor()
    await v.go(of("Secret", hush, "&tab=yaml"))
    await rewrite(v, "type: Opaque", "immutable: true\ntype: Opaque")
    expect(await v.page.locator("main").textContent()).not.toContain(encoded)
    await v.page.getByRole("button", { name: "Review changes" }).click()
    await v.page.getByRole("dialog").getByRole("button", { name: "Save" }).click()
    await v.page.getByRole("dialog").waitFor({ state: "detached" })
    const now = JSON.parse(await inOak("-n", "default", "get", "secret", hush, "-o", "json"))
    expect([now.immutable, now.data.word]).toEqual([true, encoded])
  })

  test("shows logs, and why a shell is not available", async () => {
    const v = await visit()
    await v.go("/object?of=Deployment.apps/demo/hello&tab=logs")
    await v.page.getByText("This container is simulated").first().waitFor()
    await v.go(`/object?cluster=${cluster}&of=Deployment.apps/demo/hello&tab=shell`)
    await v.page.getByRole("button", { name: "Open" }).click()
    await v.page.locator(".notice").waitFor()
    expect(await v.page.locator(".notice").textContent()).not.toContain("1006")
  })
})

/** Waits until the mirror has a state, so that it is a step of the history. */
async function known(name: string, value: string): Promise<void> {
  const path = `/apis/fleet.orrery.dev/v1alpha1/resources/fleet/proxy/clusters/${cluster}/api/v1/namespaces/default/configmaps/${name}`
  await expect.poll(() => kubectl("get", "--raw", path).catch(() => "")).toContain(value)
}
