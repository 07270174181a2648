import type { Work } from "./explained"

// One workload in all of its clusters, a row for each, with the live and the wanted state.

export type Tone = "good" | "warn" | "bad" | "unknown" | "plain"

export interface Image {
  container: string
  wanted?: string
  live?: string
  /** The cluster has another image than the one rendered for it. */
  differs: boolean
  /** Most clusters should have another image. */
  odd: boolean
}

export interface MatrixRow {
  cluster: string
  placed: boolean
  state: Work["state"]
  tone: Tone
  health: Work["health"]
  cause?: string
  replicas?: { ready?: number; asked?: number; wanted?: number; tone: Tone }
  images: Image[]
  overrides: { name: string; kind: string; namespace?: string }[]
  /**
   * The number of fields that differ from the rendered object; undefined: unknown, and
   * driftUnknown is the reason.
   */
  drift?: number
  driftUnknown?: string
  /** Why the object is not as wanted. */
  message?: string
  lastSeen?: string
}

function replicas(w: Work): MatrixRow["replicas"] {
  if (w.wanted === undefined && w.asked === undefined && w.ready === undefined) return undefined
  const tone = w.state !== "Present" || w.ready === undefined ? "unknown" : w.ready >= (w.wanted ?? w.asked ?? 0) ? "good" : w.ready === 0 ? "bad" : "warn"
  return { ready: w.ready, asked: w.asked, wanted: w.wanted, tone }
}

/** The tone of a row. An unknown state is never red. */
function tone(w: Work): Tone {
  if (w.state === "Unknown") return "unknown"
  if (!w.placed) return "plain"
  if (w.state === "Absent" || w.result?.applied === false) return "bad"
  if (w.health === "Unhealthy") return "bad"
  if (w.drift?.length) return "warn"
  return w.health === "Healthy" ? "good" : "unknown"
}

export function matrix(works: Work[]): MatrixRow[] {
  const wanted = new Map<string, Map<string, number>>()
  for (const w of works) {
    for (const i of w.images ?? []) {
      const counts = wanted.get(i.container) ?? new Map<string, number>()
      wanted.set(i.container, counts)
      if (i.wanted) counts.set(i.wanted, (counts.get(i.wanted) ?? 0) + 1)
    }
  }
  const usual = (container: string) => [...(wanted.get(container) ?? [])].sort((a, b) => b[1] - a[1])[0]?.[0]
  return works.map((w) => ({
    cluster: w.cluster,
    placed: w.placed,
    state: w.state,
    tone: tone(w),
    health: w.state === "Unknown" ? "Unknown" : w.health,
    cause: w.cause,
    replicas: replicas(w),
    images: (w.images ?? []).map((i) => ({
      ...i,
      differs: Boolean(i.wanted && i.live && i.wanted !== i.live),
      odd: Boolean(i.wanted && i.wanted !== usual(i.container)),
    })),
    overrides: w.overrides ?? [],
    drift: w.driftUnknown ? undefined : (w.drift?.length ?? 0),
    driftUnknown: w.driftUnknown,
    message: w.message || (w.result?.applied === false ? w.result.message : undefined) || w.cause,
    lastSeen: w.lastSeen,
  }))
}

export interface Sum {
  clusters: number
  healthy: number
  unknown: number
  drifted: number
  ready: number
  wanted: number
  /** Whether some cluster reports replicas. */
  counted: boolean
}

export function sum(rows: MatrixRow[]): Sum {
  const s: Sum = { clusters: 0, healthy: 0, unknown: 0, drifted: 0, ready: 0, wanted: 0, counted: false }
  for (const r of rows) {
    if (!r.placed) continue
    s.clusters++
    if (r.state === "Unknown") s.unknown++
    else if (r.health === "Healthy") s.healthy++
    if (r.drift) s.drifted++
    if (!r.replicas) continue
    s.counted = true
    s.ready += r.replicas.ready ?? 0
    s.wanted += r.replicas.wanted ?? r.replicas.asked ?? 0
  }
  return s
}

/**
 * The name of an image without its registry path. A digest is shortened, but still differs from
 * others.
 */
export function shortImage(image: string): string {
  const digest = image.indexOf("@sha256:")
  const named = digest < 0 ? image : `${image.slice(0, digest)}@${image.slice(digest + 8, digest + 20)}…`
  return named.split("/").at(-1) ?? named
}
