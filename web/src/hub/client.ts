/** Every request of the page is sent from here: to the hub's API, as the user of the session. */

export type Status = {
  code: number
  reason: string
  message: string
  details?: { causes?: { field?: string; message?: string; reason?: string }[] }
}

export type Meta = {
  name: string
  namespace?: string
  uid?: string
  resourceVersion?: string
  generation?: number
  creationTimestamp?: string
  deletionTimestamp?: string
  labels?: Record<string, string>
  annotations?: Record<string, string>
  finalizers?: string[]
  ownerReferences?: { apiVersion: string; kind: string; name: string; uid: string; controller?: boolean }[]
  managedFields?: {
    manager: string
    operation: string
    apiVersion: string
    time?: string
    subresource?: string
    fieldsV1?: object
  }[]
}
// biome-ignore lint/suspicious/noExplicitAny: objects of any kind have the fields of their kind.
export type Obj = { apiVersion: string; kind: string; metadata: Meta; spec?: any; status?: any; [field: string]: any }
export type List<T = Obj> = {
  apiVersion: string
  kind: string
  metadata: { continue?: string; remainingItemCount?: number; resourceVersion?: string }
  items: T[]
}
/** The number of objects, grouped by some of their fields. */
export type Counts = { total: number; groups?: { values: string[]; objects: number }[] }
export type Column = { name: string; type: string; format?: string; description?: string; priority?: number }
export type Table = {
  columnDefinitions: Column[]
  rows: { cells: unknown[]; object: { metadata: Meta; apiVersion?: string; kind?: string } }[]
  metadata: { continue?: string; remainingItemCount?: number }
}

/**
 * An answer of the API server that is not a success. Its message describes the error and often a
 * remedy.
 */
export class StatusError extends Error {
  readonly status: Status
  constructor(status: Status) {
    super(status.message)
    this.status = status
  }
  get code(): number {
    return this.status.code
  }
  get refused(): boolean {
    return this.code === 401 || this.code === 403
  }
  get conflict(): boolean {
    return this.code === 409
  }
}

export const fleet = "/apis/fleet.orrery.dev/v1alpha1"
/** Root of the mirrored API of all clusters together, or of one cluster. */
export const mirrored = (cluster = "") => `${fleet}/resources/fleet/proxy${cluster ? `/clusters/${encodeURIComponent(cluster)}` : ""}`
/** Root of a cluster's own API server, or of the hub's if cluster is "". */
export const own = (cluster: string) => (cluster ? `${fleet}/clusters/${encodeURIComponent(cluster)}/proxy` : "")

export type Query = Record<string, string | number | boolean | undefined>
export type Options = { method?: string; body?: string; type?: string; accept?: string; query?: Query; signal?: AbortSignal; endless?: boolean }

/** Longer than the API server lets any request take that is not a stream. */
const answerMs = 75_000

/** The query of a URL. Undefined and empty values are left out. */
export function encode(query: Query = {}): string {
  const params = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") params.set(name, String(value))
  return params.toString()
}

export const url = (path: string, query?: Query) => {
  const params = encode(query)
  return `/console/api/hub${path}${params && (path.includes("?") ? "&" : "?")}${params}`
}

let unauthorized = () => {}
/** Sets the function that is called at a 401: it comes from a member, or the session is over. */
export function onUnauthorized(f: () => void): void {
  unauthorized = f
}

export async function request(path: string, o: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: o.accept ?? "application/json" }
  if (o.body !== undefined) headers["Content-Type"] = o.type ?? "application/json"
  const signal = AbortSignal.any([...(o.signal ? [o.signal] : []), ...(o.endless ? [] : [AbortSignal.timeout(answerMs)])])
  let answer: Response
  try {
    answer = await fetch(url(path, o.query), { method: o.method, headers, body: o.body, signal })
  } catch (e) {
    if (o.signal?.aborted) throw e
    throw new StatusError({ code: 0, reason: "Unreachable", message: String((e as Error).message) })
  }
  if (answer.ok) return answer
  const error = new StatusError(await readStatus(answer))
  if (error.code === 401) unauthorized()
  throw error
}

export async function readStatus(answer: Response): Promise<Status> {
  const text = await answer.text().catch(() => "")
  try {
    const status = JSON.parse(text)
    if (status?.kind === "Status")
      return {
        code: status.code ?? answer.status,
        reason: status.reason ?? "",
        message: status.message ?? "",
        details: status.details,
      }
  } catch {
    // A text, not a Status of an API server.
  }
  return {
    code: answer.status,
    reason: answer.statusText,
    message: text.slice(0, 500) || `${answer.status} ${answer.statusText}`,
  }
}

export async function get<T = Obj>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return (await request(path, { query, signal })).json()
}

export const list = <T = Obj>(path: string, query?: Query, signal?: AbortSignal) => get<List<T>>(path, query, signal)

export const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

export async function table(path: string, query?: Query, signal?: AbortSignal): Promise<Table> {
  return (await request(path, { accept: asTable, query, signal })).json()
}

export async function post<T = Obj>(path: string, object: unknown, query?: Query, signal?: AbortSignal): Promise<T> {
  return (await request(path, { method: "POST", body: JSON.stringify(object), query, signal })).json()
}

export const manager = "orrery-console"

/** Server-side apply as the user, with the console's field manager. Invalid fields are refused. */
export async function apply(path: string, object: Obj, o: { force?: boolean; dryRun?: boolean; signal?: AbortSignal } = {}): Promise<Obj> {
  const query = {
    fieldManager: manager,
    fieldValidation: "Strict",
    force: o.force || undefined,
    dryRun: o.dryRun ? "All" : undefined,
  }
  const body = JSON.stringify(object)
  return (await request(path, { method: "PATCH", type: "application/apply-patch+yaml", body, query, signal: o.signal })).json()
}

/** A merge patch. */
export async function patch(path: string, change: unknown, o: { dryRun?: boolean; signal?: AbortSignal } = {}): Promise<Obj> {
  const type = "application/merge-patch+json"
  const query = { fieldManager: manager, dryRun: o.dryRun ? "All" : undefined }
  return (await request(path, { method: "PATCH", type, body: JSON.stringify(change), query, signal: o.signal })).json()
}

/** Deletes an object. With a uid, an object that was created again under its name is left alone. */
export async function remove(path: string, uid: string | undefined, o: { dryRun?: boolean } = {}): Promise<void> {
  // All options are in the body: API servers ignore the query of a DELETE that has a body.
  const options = { propagationPolicy: "Background", dryRun: o.dryRun ? ["All"] : undefined, preconditions: uid ? { uid } : undefined }
  await request(path, { method: "DELETE", body: JSON.stringify({ apiVersion: "v1", kind: "DeleteOptions", ...options }) })
}

/** The URL of an upgrade (exec, attach) at the hub. */
export const socketURL = (path: string, query?: Query) => location.origin.replace(/^http/, "ws") + url(path, query)
