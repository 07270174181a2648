import { test } from "vitest"
import { expect, kubectl, visit, withBrowser } from "./world"

withBrowser()

const hello = "Deployment demo/hello"
const placed = () => kubectl("-n", "demo", "get", "resourcebinding", "hello-deployment", "-o", "jsonpath={.spec.clusters}")

test("an edit of a policy says which replicas go where before it is saved", async () => {
  const before = await placed()
  const v = await visit()
  await v.go("/policies?kind=PropagationPolicy&namespace=demo&name=hello")
  await v.page.getByRole("textbox", { name: "Never in" }).first().fill("pine")
  await v.page.getByRole("button", { name: "Review and save" }).click()
  const moves = v.page.getByRole("dialog").getByRole("region", { name: /What moves/ })
  const one = moves.getByRole("listitem").filter({ hasText: hello })
  await one.getByText("pine 2 → 0").waitFor()
  await one.getByText("oak 2 → 3").waitFor()
  await moves.getByRole("listitem").filter({ hasText: "Service demo/hello" }).getByText("pine: goes").waitFor()
  await v.page.keyboard.press("Escape")
  expect(await placed()).toBe(before)
})

test("who takes a cluster out of the fleet sees where its replicas go, by whichever page", async () => {
  const v = await visit()
  for (const [path, act] of [
    ["/clusters/pine", () => v.page.getByRole("button", { name: "Unjoin" }).click()],
    ["/object?of=Cluster.cluster.orrery.dev/pine", () => v.page.keyboard.press("Control+d")],
  ] as const) {
    await v.go(path)
    await v.page.getByRole("tab", { name: "Overview" }).waitFor()
    await act()
    const dialog = v.page.getByRole("dialog", { name: "Take pine out of the fleet?" })
    const one = dialog.getByRole("listitem").filter({ hasText: hello })
    await one.getByText("pine 2 → 0").waitFor()
    await one.getByText("oak 2 → 3").waitFor()
    await v.page.keyboard.press("Escape")
    await dialog.waitFor({ state: "detached" })
  }
})

test("a namespace says what goes with it, and asks for its name", async () => {
  const v = await visit()
  await v.go("/object?of=Namespace/demo")
  await v.page.getByRole("tab", { name: "Overview" }).waitFor()
  await v.page.keyboard.press("Control+d")
  const dialog = v.page.getByRole("dialog")
  await dialog.getByText(/With it go all objects in it, of which \d+ are placed/).waitFor()
  for (const c of ["birch", "oak", "pine"]) await dialog.getByText(c, { exact: true }).waitFor()
  const act = dialog.getByRole("button", { name: "Delete" })
  expect(await act.isDisabled()).toBe(true)
  await dialog.getByRole("textbox").fill("demo")
  await expect.poll(() => act.isEnabled()).toBe(true)
  await v.page.keyboard.press("Escape")
  await v.go("/object?cluster=oak&of=Namespace/demo")
  await v.page.getByRole("tab", { name: "Overview" }).waitFor()
  await v.page.keyboard.press("Control+d")
  await dialog.getByText(/With it go all \d+ objects/).waitFor()
})

test("a taint evicts nothing, as the page says", async () => {
  const before = await placed()
  const v = await visit()
  await v.go("/clusters/pine")
  await v.page.getByText("What is placed here stays.").waitFor()
  await v.page.getByRole("textbox", { name: "Add a taint" }).fill("broken:NoExecute")
  await v.page.getByRole("button", { name: "Add a taint" }).click()
  const remove = v.page.getByRole("button", { name: "Remove the taint broken:NoExecute" })
  await remove.waitFor()
  // A change of the template has it placed anew.
  await kubectl("-n", "demo", "annotate", "deployment", "hello", `example.com/at=${Date.now()}`, "--overwrite")
  await v.go("/why?of=Deployment.apps/demo/hello")
  await v.page
    .getByText("Placed, and would not be any more")
    .or(v.page.getByText("Placed", { exact: true }))
    .first()
    .waitFor()
  expect(await placed()).toBe(before)
  await v.go("/clusters/pine")
  await remove.click()
  await remove.waitFor({ state: "detached" })
})
