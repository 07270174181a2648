// Quantities of Kubernetes: parsed for comparison, and formatted for people.

const factors: Record<string, number> = {
  n: 1e-9,
  u: 1e-6,
  m: 1e-3,
  "": 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  P: 1e15,
  E: 1e18,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
  Pi: 2 ** 50,
  Ei: 2 ** 60,
}

/** The number of a quantity; undefined: not a quantity. */
export function quantity(text: string | number | undefined): number | undefined {
  if (text === undefined) return undefined
  const m = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]?|[KMGTPE]i)$/.exec(String(text).trim())
  return m ? Number(m[1]) * (factors[m[2] as string] as number) : undefined
}

/** A number of at most three digits, without zeros at its end. */
function short(n: number): string {
  return String(Number(n < 10 ? n.toFixed(1) : n.toFixed(0)))
}

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
  let i = 0
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024
  return `${short(n)} ${units[i]}`
}

/** An amount of a resource, in the unit of the resource. */
export function amount(resource: string, n: number): string {
  if (resource === "memory" || resource.endsWith("storage") || resource.startsWith("hugepages-")) return bytes(n)
  return n >= 1000 ? `${short(n / 1000)}k` : short(n)
}
