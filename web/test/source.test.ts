/** Limits and rules for the whole source. */
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs"
import { gzipSync } from "node:zlib"
import { expect, test } from "vitest"
import en from "../src/text/en"
import zh from "../src/text/zh"

const files = (dir: string, ending: RegExp): string[] =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((f) => f.isFile() && ending.test(f.name))
    .map((f) => `${f.parentPath}/${f.name}`)
const read = (path: string) => readFileSync(path, "utf8")

test("texts: the same keys and parameters in both languages, none empty", () => {
  const params = (text: string) => [...new Set([...text.matchAll(/\{(\w+)/g)].map((m) => m[1]))].sort()
  for (const [folder, texts] of Object.entries(en)) {
    const other = zh[folder as keyof typeof zh] as Record<string, string>
    expect(Object.keys(other).sort(), folder).toEqual(Object.keys(texts).sort())
    for (const [key, text] of Object.entries(texts as Record<string, string>)) {
      expect(text, `${folder}.${key}`).not.toBe("")
      expect(params(other[key]!), `${folder}.${key}`).toEqual(params(text))
    }
  }
})

test("texts: all shown text comes from the text files", () => {
  // Names that are the same in every language.
  const names = new Set(["Orrery", "orrery console", "UID", "YAML", "English", "简体中文", "Kubernetes"])
  const found = files("src", /\.tsx$/).flatMap((path) => {
    const text = read(path).replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "")
    const between = [...text.matchAll(/>\s*([A-Za-z][\w ,.'’:!?-]*[a-z][\w ,.'’:!?-]*)\s*</g)].map((m) => m[1]!.trim())
    const given = [...text.matchAll(/\b(?:title|label|aria-label|placeholder|alt|text|heading)="([^"]*[A-Za-z]{2}[^"]*)"/g)].map((m) => m[1]!)
    // Code can also stand between > and <: text with an operator or a keyword is code.
    const code = /\b(?:void|string|number|boolean|undefined|typeof|const|return|extends|React|Promise)\b|=>|&&|^[a-z]\w*[.?]/
    return [...between.filter((b) => !code.test(b)), ...given].filter((s) => !names.has(s)).map((s) => `${path}: ${s}`)
  })
  expect(found).toEqual([])
})

test("the source writes no text into the page as HTML, and makes no code from text", () => {
  const found = files("src", /\.tsx?$/).filter((path) =>
    /dangerouslySetInnerHTML|\.innerHTML|outerHTML|document\.write|\beval\(|new Function\(/.test(read(path)),
  )
  expect(found).toEqual([])
})

test("the browser's storage has no token", () => {
  const keys = files("src", /\.tsx?$/).flatMap((path) => (/\b(?:localStorage|sessionStorage)\b/.test(read(path)) ? [path] : []))
  const allowed = /src\/(look\/theme|text\/text|table\/Views|layout\/|hub\/kinds)/
  expect(keys.filter((path) => !allowed.test(path))).toEqual([])
})

test("licences of the bundled packages", () => {
  const allowed = new Set(["MIT", "ISC", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "CC0-1.0", "Unlicense"])
  const lock = JSON.parse(read("package-lock.json")) as { packages: Record<string, { dev?: boolean; license?: string }> }
  const others = Object.entries(lock.packages).filter(([path, p]) => path && !p.dev && !allowed.has(p.license ?? ""))
  expect(others.map(([path, p]) => `${path}: ${p.license}`)).toEqual([])
})

test("versions are exact, and the lockfile names no registry", () => {
  const { dependencies, devDependencies } = JSON.parse(read("package.json"))
  for (const [name, version] of Object.entries({ ...dependencies, ...devDependencies })) expect(version, name).toMatch(/^\d+\.\d+\.\d+$/)
  expect(read("package-lock.json")).not.toMatch(/"resolved"|registry/)
})

test("at most 15,700 lines are written by hand", () => {
  // Blank lines and comment lines do not count, nor the second language and the browser specs.
  const code = (line: string) => !/^\s*(?:$|\/\/|\/\*|\*)/.test(line)
  const written = [...files("src", /\.(tsx?|css)$/), ...files("test", /\.ts$/)].filter((path) => !/^(src\/text\/zh|test\/browser)\//.test(path))
  const lines = written.reduce((n, path) => n + read(path).split("\n").filter(code).length, 0)
  console.info(`${lines} lines`)
  expect(lines).toBeLessThanOrEqual(15_700)
})

type Chunk = { file: string; imports?: string[]; css?: string[]; isEntry?: boolean; src?: string }

test.skipIf(!existsSync("dist/manifest.json"))("sizes: 200 KiB at first load, 2.5 MB in all", () => {
  const manifest = JSON.parse(read("dist/manifest.json")) as Record<string, Chunk>
  const first = new Set<string>(["index.html"])
  const add = (key: string) => {
    const chunk = manifest[key]
    if (!chunk || first.has(chunk.file)) return
    first.add(chunk.file)
    for (const css of chunk.css ?? []) first.add(css)
    for (const next of chunk.imports ?? []) add(next)
  }
  // The files that a tab loads before it shows its first screen.
  for (const [key, chunk] of Object.entries(manifest)) if (chunk.isEntry || chunk.src === "src/fleet/page.tsx") add(key)
  const gzip = [...first].reduce((n, file) => n + gzipSync(readFileSync(`dist/${file}`), { level: 9 }).length, 0)
  const all = files("dist", /./).reduce((n, path) => n + (/\.(br|gz)$/.test(path) ? 0 : statSync(path).size), 0)
  console.info(`first load ${(gzip / 1024).toFixed(1)} KiB gzip, ${(all / 1e6).toFixed(2)} MB uncompressed`)
  expect(gzip).toBeLessThanOrEqual(200 * 1024)
  expect(all).toBeLessThanOrEqual(2_500_000)
})
