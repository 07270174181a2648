/** Pure: the line diff of two texts (Myers), without the middle of long equal parts. */
export type Line = { kind: "same" | "added" | "removed"; text: string; before?: number; after?: number } | { kind: "gap"; count: number }

const maxEdits = 4000

export function diffLines(before: string[], after: string[], context = 3): Line[] {
  const lines = edits(before, after)
  const near = lines.map(() => false)
  lines.forEach((line, i) => {
    if (line.kind === "same") return
    for (let j = Math.max(0, i - context); j <= Math.min(lines.length - 1, i + context); j++) near[j] = true
  })
  const out: Line[] = []
  lines.forEach((line, i) => {
    const last = out.at(-1)
    if (near[i]) out.push(line)
    else if (last?.kind === "gap") last.count++
    else out.push({ kind: "gap", count: 1 })
  })
  return out
}

function edits(a: string[], b: string[]): Exclude<Line, { kind: "gap" }>[] {
  let head = 0
  while (head < a.length && head < b.length && a[head] === b[head]) head++
  let tail = 0
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++
  const same = (i: number, j: number) => ({ kind: "same" as const, text: a[i]!, before: i + 1, after: j + 1 })
  const out: Exclude<Line, { kind: "gap" }>[] = []
  for (let i = 0; i < head; i++) out.push(same(i, i))
  out.push(...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail), head))
  for (let i = tail; i > 0; i--) out.push(same(a.length - i, b.length - i))
  return out
}

function middle(a: string[], b: string[], at: number): Exclude<Line, { kind: "gap" }>[] {
  const removed = (i: number) => ({ kind: "removed" as const, text: a[i]!, before: at + i + 1 })
  const added = (j: number) => ({ kind: "added" as const, text: b[j]!, after: at + j + 1 })
  const trace: Map<number, number>[] = []
  let reach = new Map<number, number>([[1, 0]])
  for (let d = 0; d <= Math.min(a.length + b.length, maxEdits); d++) {
    trace.push(new Map(reach))
    const next = new Map(reach)
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (next.get(k - 1) ?? -1) < (next.get(k + 1) ?? -1))
      let x = down ? (next.get(k + 1) ?? 0) : (next.get(k - 1) ?? 0) + 1
      let y = x - k
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x++
        y++
      }
      next.set(k, x)
      if (x >= a.length && y >= b.length) return backtrack(trace, d)
    }
    reach = next
  }
  // Too many differences: remove all lines of one text, then add all of the other.
  return [...a.map((_, i) => removed(i)), ...b.map((_, j) => added(j))]

  function backtrack(trace: Map<number, number>[], d: number) {
    const out: Exclude<Line, { kind: "gap" }>[] = []
    let x = a.length
    let y = b.length
    for (; d >= 0; d--) {
      const v = trace[d]!
      const k = x - y
      const down = k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1))
      const before = down ? k + 1 : k - 1
      const fromX = d === 0 ? 0 : (v.get(before) ?? 0)
      const fromY = d === 0 ? 0 : fromX - before
      while (x > fromX && y > fromY) {
        x--
        y--
        out.push({ kind: "same", text: a[x]!, before: at + x + 1, after: at + y + 1 })
      }
      if (d === 0) break
      if (down) out.push(added(--y))
      else out.push(removed(--x))
    }
    return out.reverse()
  }
}

/**
 * Pure: an object without metadata that changes all the time and does not matter in a comparison.
 */
export function comparable<T>(object: T): T {
  if (!object || typeof object !== "object" || !("metadata" in object)) return object
  const { metadata, ...rest } = object as { metadata?: Record<string, unknown> }
  const { managedFields: _, resourceVersion: __, generation: ___, ...kept } = metadata ?? {}
  return { ...rest, metadata: kept } as T
}
