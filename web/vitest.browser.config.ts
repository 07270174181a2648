import { appendFileSync } from "node:fs"
import { defineConfig } from "vitest/config"
import { BaseSequencer, type Reporter, type TestModule, type TestSpecification } from "vitest/node"

/** The specs that change nothing in the fleet, the longest first. */
const reading = ["fault", "stale", "phone", "pages", "tab", "motion", "views", "tenant", "own", "relations", "rights", "palette", "begin"]

/** The specs that write and run last: restart kills the hub, the other one fills it with pods. */
const last = ["restart", "load"]

/** Orders the specs by name, not by earlier results: reading as listed, then others, then last. */
class Sequence extends BaseSequencer {
  async sort(files: TestSpecification[]) {
    const name = (file: TestSpecification) => file.moduleId.replace(/^.*\/|\.spec\.ts$/g, "")
    const all = [...reading, "", ...last]
    const order = (file: TestSpecification) => (all.includes(name(file)) ? all.indexOf(name(file)) : reading.length)
    return files.sort((a, b) => order(a) - order(b) || a.moduleId.localeCompare(b.moduleId))
  }
}

/** Writes the duration of each project to the file that hack/console.sh prints at the end. */
class Phases implements Reporter {
  private readonly spans = new Map<string, { began: number; ended: number }>()

  onTestModuleStart({ project: { name } }: TestModule) {
    if (!this.spans.has(name)) this.spans.set(name, { began: Date.now(), ended: Date.now() })
  }

  onTestModuleEnd({ project: { name } }: TestModule) {
    this.spans.get(name)!.ended = Date.now()
  }

  onTestRunEnd() {
    if (!process.env.CONSOLE_PHASES) return
    for (const [name, { began, ended }] of this.spans) appendFileSync(process.env.CONSOLE_PHASES, `${name} ${Math.round((ended - began) / 1000)} s\n`)
  }
}

const file = (name: string) => `test/browser/${name}.spec.ts`
// Timeouts are long because the machine may be busy.
const common = {
  environment: "node",
  isolate: false,
  testTimeout: 600_000,
  hookTimeout: 600_000,
  expect: { poll: { timeout: 180_000 } },
} as const
const single = process.env.SCREENSHOTS ? "test/browser/screenshots.ts" : process.env.BENCH ? "test/browser/bench.ts" : undefined

// The specs share one demo and one browser. Specs that only read run two at a time; specs that
// write run afterwards, one by one.
export default defineConfig({
  test: {
    globalSetup: "test/browser/setup.ts",
    sequence: { sequencer: Sequence },
    reporters: ["default", new Phases()],
    projects: single
      ? [{ test: { ...common, name: "single", include: [single], fileParallelism: false } }]
      : [
          { test: { ...common, name: "reading", include: reading.map(file), maxWorkers: 2, sequence: { groupOrder: 1 } } },
          {
            test: { ...common, name: "writing", include: [file("*")], exclude: reading.map(file), fileParallelism: false, sequence: { groupOrder: 2 } },
          },
        ],
  },
})
