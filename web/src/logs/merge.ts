// Lines of several streams, merged by time.

import { clean } from "./clean"

export interface Line {
  /** Microseconds since 1970, by the clock of the node. */
  time: number
  stream: number
  /** A number that is unique among the lines of all streams; used for the keys of rows. */
  number: number
  text: string
}

/**
 * Splitter splits the bytes of one stream into lines, which begin with a time. After a break,
 * lines are requested from the time of the last one; Splitter skips those that it already has.
 */
export class Splitter {
  private rest = ""
  private last = Number.NEGATIVE_INFINITY
  /** The number of lines with the latest time, and how many of them are still expected again. */
  private had = 0
  private again = 0
  private decoder = new TextDecoder()

  /** since is the time to continue from after a break; undefined: no line was received yet. */
  get since(): string | undefined {
    return Number.isFinite(this.last) ? new Date(Math.floor(this.last / 1e6) * 1000).toISOString() : undefined
  }

  /** resume begins a new answer. Its lines begin at the second of the last line. */
  resume() {
    this.rest = ""
    this.decoder = new TextDecoder()
    this.again = this.had
  }

  add(chunk: Uint8Array): { time: number; text: string }[] {
    return this.lines(this.rest + this.decoder.decode(chunk, { stream: true }))
  }

  /** end returns a last line without a line end. */
  end(): { time: number; text: string }[] {
    const rest = this.rest + this.decoder.decode()
    return rest === "" ? [] : this.lines(`${rest}\n`)
  }

  private lines(text: string): { time: number; text: string }[] {
    const lines = text.split("\n")
    this.rest = lines.pop() ?? ""
    // A program without line ends: only the beginning of the line is kept until its end is found.
    if (this.rest.length > 1 << 20) this.rest = this.rest.slice(0, 1 << 20)
    const out: { time: number; text: string }[] = []
    for (const line of lines) {
      const space = line.indexOf(" ")
      const own = parseTime(space < 0 ? line : line.slice(0, space))
      const time = own ?? (Number.isFinite(this.last) ? this.last : 0)
      if (own !== undefined && time < this.last && this.again > 0) continue
      if (own !== undefined && time === this.last && this.again > 0) {
        this.again--
        continue
      }
      if (time > this.last) this.again = 0
      this.had = time === this.last ? this.had + 1 : 1
      this.last = Math.max(this.last, time)
      out.push({ time, text: clean(own === undefined ? line : space < 0 ? "" : line.slice(space + 1)) })
    }
    return out
  }
}

/** parseTime parses a time of RFC 3339 to the microsecond; undefined: not a time. */
export function parseTime(text: string): number | undefined {
  const parts = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/.exec(text)
  if (!parts) return undefined
  const seconds = Date.parse(`${parts[1]}${parts[3]}`)
  return Number.isNaN(seconds) ? undefined : seconds * 1000 + Number((parts[2] ?? "").slice(0, 6).padEnd(6, "0"))
}

/**
 * Ring keeps the latest lines of all streams, ordered by time. It never changes a list that it
 * returned, so a paused view keeps its lines.
 */
export class Ring {
  private all: readonly Line[] = []
  private waiting: Line[] = []
  private count = 0

  private readonly size: number

  constructor(size = 50_000) {
    this.size = size
  }

  add(stream: number, lines: { time: number; text: string }[]) {
    for (const line of lines) this.waiting.push({ ...line, stream, number: this.count++ })
  }

  /** lines returns all lines, including those added since the last call. */
  lines(): readonly Line[] {
    if (this.waiting.length === 0) return this.all
    const came = this.waiting.sort(before)
    this.waiting = []
    let from = this.all.length
    while (from > 0 && before(this.all[from - 1] as Line, came[0] as Line) > 0) from--
    const merged = this.all.slice(0, from)
    let i = from
    for (const line of came) {
      while (i < this.all.length && before(this.all[i] as Line, line) <= 0) merged.push(this.all[i++] as Line)
      merged.push(line)
    }
    while (i < this.all.length) merged.push(this.all[i++] as Line)
    this.all = merged.slice(Math.max(0, merged.length - this.size))
    return this.all
  }
}

const before = (a: Line, b: Line): number => a.time - b.time || a.number - b.number

/** search returns the indexes of the lines that contain the text, ignoring case. */
export function search(lines: readonly Line[], text: string): number[] {
  const wanted = text.toLowerCase()
  if (wanted === "") return []
  const out: number[] = []
  lines.forEach((line, i) => {
    if (line.text.toLowerCase().includes(wanted)) out.push(i)
  })
  return out
}

/** download returns the lines as a text file, each with its time and source. */
export function download(lines: readonly Line[], nameOf: (stream: number) => string): string {
  return lines.map((line) => `${new Date(line.time / 1000).toISOString()} ${nameOf(line.stream)} ${line.text}\n`).join("")
}
