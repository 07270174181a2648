import { defineConfig } from "vitest/config"
import { BaseSequencer } from "vitest/node"

/** By the names of the files, and not by how they fared; the last are the one that kills the hub, and the one that fills it. */
class Sequence extends BaseSequencer {
  async sort(files: Parameters<BaseSequencer["sort"]>[0]) {
    const last = (path: string) => ["restart", "crowd"].findIndex((name) => path.endsWith(`/${name}.spec.ts`))
    return files.sort((a, b) => last(a.moduleId) - last(b.moduleId) || a.moduleId.localeCompare(b.moduleId))
  }
}

// Specs share one demo and one browser's worth of processors: one after another.
export default defineConfig({
  test: {
    include: [process.env.SCREENSHOTS ? "test/browser/screenshots.ts" : process.env.BENCH ? "test/browser/bench.ts" : "test/browser/*.spec.ts"],
    environment: "node",
    fileParallelism: false,
    sequence: { sequencer: Sequence },
    testTimeout: 60_000,
    hookTimeout: 60_000,
    globalSetup: "test/browser/setup.ts",
  },
})
