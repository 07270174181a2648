import { defineConfig } from "vitest/config"

// Specs share one demo and one browser's worth of processors: one after another, in the order of their names.
export default defineConfig({
  test: {
    include: [process.env.SCREENSHOTS ? "test/browser/screenshots.ts" : "test/browser/*.spec.ts"],
    environment: "node",
    fileParallelism: false,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    globalSetup: "test/browser/setup.ts",
  },
})
