import { list, type Obj } from "../hub/client"
import { askRights, scopes, somewhere, where } from "../hub/rights"

export const clustersOf = (binding: Obj): string[] => (binding.spec.clusters ?? []).map((c: { name: string }) => c.name)

const page = 500

/** Reads a list page by page, until its end or until at least `most` items are read. */
async function read(path: string, most: number, signal?: AbortSignal) {
  const items: Obj[] = []
  let from: string | undefined
  do {
    const some = await list(path, { limit: page, continue: from }, signal)
    items.push(...some.items)
    from = some.metadata.continue
  } while (from && items.length < most)
  return { items, more: from !== undefined && from !== "" }
}

/**
 * The bindings that the user may list: of one namespace, or of all namespaces and cluster-scoped
 * objects. more: there are others; whole: these are all. undefined: the user may list none.
 */
export async function bindings(
  namespace?: string,
  signal?: AbortSignal,
  most = Number.POSITIVE_INFINITY,
): Promise<{ items: Obj[]; more: boolean; whole: boolean } | undefined> {
  const api = "/apis/work.orrery.dev/v1alpha2"
  const rights = await askRights()
  const inside = where(rights, "list", "work.orrery.dev", "resourcebindings")
  const outside = where(rights, "list", "work.orrery.dev", "clusterresourcebindings")
  const spaces = scopes(inside).flatMap((ns) => (namespace === undefined || ns === namespace ? [ns] : ns === "" ? [namespace] : []))
  const paths = spaces.map((ns) => `${api}${ns ? `/namespaces/${ns}` : ""}/resourcebindings`)
  if (namespace === undefined && somewhere(outside)) paths.push(`${api}/clusterresourcebindings`)
  if (paths.length === 0) return undefined
  const all = await Promise.all(paths.map((path) => read(path, most, signal)))
  const more = all.some((l) => l.more)
  return { items: all.flatMap((l) => l.items), more, whole: !more && (namespace !== undefined || (inside.everywhere && outside.everywhere)) }
}
