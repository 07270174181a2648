import { useSyncExternalStore } from "react"
import { useAnswer } from "./answer"
import { mirrored, request } from "./client"

export type Kind = {
  group: string
  version: string
  resource: string
  singular: string
  kind: string
  shortNames: string[]
  categories: string[]
  namespaced: boolean
  verbs: string[]
  subresources: string[]
  /** KIND.GROUP, or KIND for the core group: the name of the kind in URLs. */
  of: string
}

type Discovery = {
  items: {
    metadata: { name?: string }
    versions: {
      version: string
      resources?: {
        resource: string
        responseKind?: { kind: string; group: string; version: string }
        scope: string
        singularResource?: string
        verbs?: string[]
        shortNames?: string[]
        categories?: string[]
        subresources?: { subresource: string }[]
      }[]
    }[]
  }[]
}

/** Pure: the kinds of a discovery, each in its preferred version. */
export function readKinds(discoveries: Discovery[]): Kind[] {
  const kinds = new Map<string, Kind>()
  for (const { items } of discoveries)
    for (const group of items)
      for (const { version, resources } of group.versions)
        for (const r of resources ?? []) {
          const name = group.metadata.name ?? ""
          const kind = r.responseKind?.kind || r.resource
          const key = `${r.resource}.${name}`
          if (kinds.has(key)) continue
          kinds.set(key, {
            group: name,
            version,
            kind,
            resource: r.resource,
            singular: r.singularResource ?? kind.toLowerCase(),
            shortNames: r.shortNames ?? [],
            categories: r.categories ?? [],
            namespaced: r.scope === "Namespaced",
            verbs: r.verbs ?? [],
            subresources: (r.subresources ?? []).map((s) => s.subresource),
            of: name ? `${kind}.${name}` : kind,
          })
        }
  return [...kinds.values()].sort((a, b) => a.kind.localeCompare(b.kind) || a.group.localeCompare(b.group))
}

/**
 * Pure: the kind with a name: its kind, resource, singular or short name. Kinds of Kubernetes win
 * over others.
 */
export function findKind(kinds: Kind[], name: string): Kind | undefined {
  const wanted = name.toLowerCase()
  const names = (k: Kind) => [k.kind, k.resource, k.singular, ...k.shortNames, k.of, `${k.resource}.${k.group}`]
  const found = kinds.filter((k) => names(k).some((n) => n.toLowerCase() === wanted))
  const rank = (k: Kind) => (k.group === "" ? 0 : k.group.endsWith(".k8s.io") || !k.group.includes(".") ? 1 : 2)
  return found.sort((a, b) => rank(a) - rank(b))[0]
}

/** The path of the list of a kind below a root, or of an object if name is given. */
export function pathOf(k: Pick<Kind, "group" | "version" | "resource" | "namespaced">, namespace = "", name = ""): string {
  const root = k.group ? `/apis/${k.group}/${k.version}` : `/api/${k.version}`
  const inside = k.namespaced && namespace ? `/namespaces/${encodeURIComponent(namespace)}` : ""
  return `${root}${inside}/${k.resource}${name ? `/${encodeURIComponent(name)}` : ""}`
}

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

async function discover(root: string): Promise<Kind[]> {
  const ask = async (path: string): Promise<Discovery> => (await request(root + path, { accept: aggregated })).json()
  return readKinds(await Promise.all([ask("/api"), ask("/apis")]))
}

// The address of this code changes with each version of the page, so data kept by another version
// is not read.
const kept = `orrery.kinds ${import.meta.url}`

class Kinds {
  private kinds?: Kind[]
  private asked = 0
  private asking?: Promise<Kind[]>
  private readonly listeners = new Set<() => void>()
  readonly root: string
  constructor(root: string) {
    this.root = root
  }
  subscribe = (f: () => void) => {
    this.listeners.add(f)
    // Types change with clusters and CRDs: kinds older than a minute are loaded again.
    if (this.kinds && Date.now() - this.asked > 60_000) this.load().catch(() => {})
    return () => this.listeners.delete(f)
  }
  now = () => this.kinds
  load(): Promise<Kind[]> {
    const loaded = (kinds: Kind[]) => {
      this.asked = Date.now()
      this.kinds = kinds
      try {
        if (this.root) sessionStorage.setItem(kept, JSON.stringify(kinds))
      } catch {
        // If the storage is full, the next page waits for the kinds.
      }
      for (const f of this.listeners) f()
      return kinds
    }
    this.asking ??= discover(this.root)
      .then(loaded)
      .finally(() => {
        this.asking = undefined
      })
    return this.asking
  }
}

const [fleetKinds, hubKinds] = [new Kinds(mirrored()), new Kinds("")]

function useKinds(of: Kinds): Kind[] | undefined {
  const kinds = useSyncExternalStore(of.subscribe, of.now)
  const { error } = useAnswer(kinds ? undefined : () => of.load(), `kinds ${of.root}`)
  if (!kinds && error) throw error
  return kinds
}

/**
 * The kinds of all clusters that this tab loaded last. They predict the list for a name until the
 * current kinds are loaded.
 */
export function lastKinds(): Kind[] {
  return JSON.parse(sessionStorage.getItem(kept) ?? "[]")
}

/** Loads the kinds of all clusters before a screen asks for them. */
export const beginKinds = () => void fleetKinds.load().catch(() => {})
/** The kinds of all clusters together; undefined until loaded. */
export const useFleetKinds = () => useKinds(fleetKinds)
/** The kinds of the hub's own API. */
export const useHubKinds = () => useKinds(hubKinds)
export const useKindsOf = (hub: boolean) => useKinds(hub ? hubKinds : fleetKinds)
