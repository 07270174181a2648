import { defineConfig } from "vitest/config"

// What test/lab/agent runs: a hub with a cluster of a real kubelet.
export default defineConfig({
  test: { include: ["test/browser/lab/*.spec.ts"], environment: "node", testTimeout: 60_000, hookTimeout: 60_000 },
})
