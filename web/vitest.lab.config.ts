import { defineConfig } from "vitest/config"

// Run by test/lab/agent: a hub with a cluster that has a real kubelet.
export default defineConfig({
  test: { include: ["test/browser/lab/*.spec.ts"], environment: "node", testTimeout: 600_000, hookTimeout: 600_000, expect: { poll: { timeout: 180_000 } } },
})
