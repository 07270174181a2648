// Lines of many streams, merged by time.

import { clean } from "./clean"

export interface Line {
  /** Microseconds since 1970, by the clock of the node. */
  time: number
  stream: number
  /** Counts the lines of all streams: a line keeps it, and keys of rows are made of it. */
  number: number
  text: string
}

/** Splitter makes lines of the bytes of one stream, which begin with a time each. After a break it is asked for lines since the last one, and passes over those that it had. */
export class Splitter {
  private rest = ""
  private last = Number.NEGATIVE_INFINITY
  /** How many lines there were of the last moment, and how many of them come again. */
  private had = 0
  private again = 0
  private decoder = new TextDecoder()

  /** since is the moment from which on to ask after a break, or undefined if nothing came yet. */
  get since(): string | undefined {
    return Number.isFinite(this.last) ? new Date(Math.floor(this.last / 1e6) * 1000).toISOString() : undefined
  }

  /** resume begins anew: what comes now begins at the last moment's second. */
  resume() {
    this.rest = ""
    this.decoder = new TextDecoder()
    this.again = this.had
  }

  add(chunk: Uint8Array): { time: number; text: string }[] {
    return this.lines(this.rest + this.decoder.decode(chunk, { stream: true }))
  }

  /** end is what came without the end of a line. */
  end(): { time: number; text: string }[] {
    const rest = this.rest + this.decoder.decode()
    return rest === "" ? [] : this.lines(`${rest}\n`)
  }

  private lines(text: string): { time: number; text: string }[] {
    const lines = text.split("\n")
    this.rest = lines.pop() ?? ""
    if (this.rest.length > 1 << 20) this.rest = this.rest.slice(0, 1 << 20) // nobody's line: its end is looked for, what is between is not kept
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

/** parseTime reads a time of RFC 3339 to the microsecond, or undefined. */
export function parseTime(text: string): number | undefined {
  const parts = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/.exec(text)
  if (!parts) return undefined
  const seconds = Date.parse(`${parts[1]}${parts[3]}`)
  return Number.isNaN(seconds) ? undefined : seconds * 1000 + Number((parts[2] ?? "").slice(0, 6).padEnd(6, "0"))
}

/** Ring keeps the latest lines of all streams in the order of time. What it shows is never changed in place: a view that is paused keeps what it has. */
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

  /** lines are all, with those that came since the last call. */
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

/** search returns the places of lines with a text in them, upper and lower case alike. */
export function search(lines: readonly Line[], text: string): number[] {
  const wanted = text.toLowerCase()
  if (wanted === "") return []
  const out: number[] = []
  lines.forEach((line, i) => {
    if (line.text.toLowerCase().includes(wanted)) out.push(i)
  })
  return out
}

/** download is the lines as a text file, each with its time and where it is from. */
export function download(lines: readonly Line[], nameOf: (stream: number) => string): string {
  return lines.map((line) => `${new Date(line.time / 1000).toISOString()} ${nameOf(line.stream)} ${line.text}\n`).join("")
}
