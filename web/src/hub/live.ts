import { useEffect, useMemo, useRef, useSyncExternalStore } from "react"
import { broken, type Cluster, type Message, nothing, received, type Window } from "./window"

export type { Cluster, Row, State, Window } from "./window"

type Open = {
  id: number
  path: string
  query: string
  offset: number
  limit: number
  moving: boolean
  moved: boolean
  window: Window
  heard: () => void
}

const opening = ({ id, path, query, offset, limit }: Open) => ({ type: "open", id, path, query, offset, limit })

/** The hub says something each 10 s. */
const quietMs = 40_000
const lookMs = 10_000
/** How long a window that was opened ahead waits for who shows it. */
const aheadMs = 20_000

/** The one socket of a tab, open from when something needs it. */
class Live {
  private socket?: WebSocket
  private readonly windows = new Map<number, Open>()
  private readonly fleetListeners = new Set<() => void>()
  private nextID = 1
  private attempt = 0
  private timer = 0
  private watchdog = 0
  private lastHeard = 0
  private early?: Open
  clusters: Cluster[] = []
  connected = false
  /** Asks whether the session is over: after a connection that was refused, and at its end, for a hub that stops ends the connection alone. */
  doubted: () => void = () => {}

  /** Opens a window for who is about to: nobody else, so that it is closed if nobody does. */
  ahead(path: string, query: string, offset: number, limit: number): void {
    const early = this.open(path, query, offset, limit, () => {})
    this.early = early
    window.setTimeout(() => this.early === early && this.close(early), aheadMs)
  }

  open(path: string, query: string, offset: number, limit: number, heard: (w: Window) => void): Open {
    const early = this.early
    this.early = undefined
    if (early?.path === path && early.query === query) {
      early.heard = () => heard(early.window)
      if (early.window !== nothing) early.heard()
      this.move(early, offset, limit)
      return early
    }
    if (early) this.close(early)
    const open: Open = {
      id: this.nextID++,
      path,
      query,
      offset,
      limit,
      moving: true,
      moved: false,
      window: nothing,
      heard: () => heard(open.window),
    }
    this.windows.set(open.id, open)
    this.send(opening(open))
    this.connect()
    return open
  }

  /** While an answer is on its way, the last of several moves waits for it. */
  move(open: Open, offset: number, limit: number): void {
    if (open.offset === offset && open.limit === limit) return
    open.offset = offset
    open.limit = limit
    if (open.moving) open.moved = true
    else this.sendMove(open)
  }

  close(open: Open): void {
    this.windows.delete(open.id)
    this.send({ type: "close", id: open.id })
  }

  onFleet(f: () => void): () => void {
    this.fleetListeners.add(f)
    this.connect()
    return () => this.fleetListeners.delete(f)
  }

  /** Connects at once, say because the machine woke up or has a network again. */
  retry(): void {
    this.attempt = 0
    if (!this.socket) this.connect()
  }

  /** Connects before anything needs it, for a page that is on its way. */
  begin(): void {
    this.connect(true)
  }

  private sendMove(open: Open): void {
    open.moving = true
    open.moved = false
    this.send({ type: "move", id: open.id, offset: open.offset, limit: open.limit })
  }

  private send(message: object): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message))
  }

  private connect(needed = this.windows.size + this.fleetListeners.size > 0): void {
    if (this.socket || !needed) return
    clearTimeout(this.timer)
    // The first window is asked for by the address, and so answered before anything could be sent.
    const first = [...this.windows.values()].find((w) => w.query.length < 2000)
    const asked = first ? `?${new URLSearchParams({ open: JSON.stringify(opening(first)) })}` : ""
    const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/console/api/live${asked}`, "orrery-live.v1")
    this.socket = socket
    let opened = false
    socket.onopen = () => {
      opened = true
      this.attempt = 0
      this.connected = true
      this.lastHeard = Date.now()
      for (const w of this.windows.values()) if (w !== first) this.send(opening(w))
      if (first && !this.windows.has(first.id)) this.close(first)
      this.watchdog = window.setInterval(() => this.watch(), lookMs)
      this.tellFleet()
    }
    socket.onmessage = (event) => {
      this.lastHeard = Date.now()
      this.hear(JSON.parse(event.data))
    }
    socket.onclose = () => this.lost(opened)
  }

  private lost(opened: boolean): void {
    clearInterval(this.watchdog)
    this.socket = undefined
    this.connected = false
    for (const open of this.windows.values()) {
      open.moving = true
      open.moved = false
      open.window = broken(open.window)
      open.heard()
    }
    this.tellFleet()
    if (!opened) this.doubted()
    const wait = Math.min(30_000, 500 * 2 ** this.attempt++)
    this.timer = window.setTimeout(() => this.connect(), wait * (0.5 + Math.random() / 2))
  }

  /** Of a connection that is gone without a word nothing else would tell. */
  private watch(): void {
    if (Date.now() - this.lastHeard > quietMs) this.socket?.close()
  }

  private hear(m: Message): void {
    if (m.type === "fleet") {
      this.clusters = m.clusters ?? []
      this.tellFleet()
      return
    }
    if (m.type === "end") {
      this.doubted()
      return
    }
    const open = this.windows.get(m.id)
    if (!open) return
    open.window = received(open.window, m, Date.now())
    if (m.type !== "delta") {
      open.moving = false
      if (open.moved) this.sendMove(open)
    }
    open.heard()
  }

  private tellFleet(): void {
    for (const f of this.fleetListeners) f()
  }
}

export const live = new Live()

if (typeof window !== "undefined") {
  window.addEventListener("online", () => live.retry())
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && live.retry())
}

/**
 * useWindow shows rows offset…offset+limit of a list of the fleet API, as they are now. The path is below the fleet's root, the query its
 * GET parameters. What it shows of another question is never shown for this one.
 */
export function useWindow(path: string | undefined, query: string, offset: number, limit: number): Window {
  const open = useRef<Open>(undefined)
  const at = useRef({ offset, limit })
  at.current = { offset, limit }
  const store = useMemo(() => {
    let now = nothing
    return {
      subscribe(changed: () => void) {
        if (path === undefined) return () => {}
        now = nothing
        const mine = live.open(path, query, at.current.offset, at.current.limit, (w) => {
          now = w
          changed()
        })
        open.current = mine
        return () => {
          live.close(mine)
          if (open.current === mine) open.current = undefined
        }
      },
      now: () => now,
    }
  }, [path, query])
  const window = useSyncExternalStore(store.subscribe, store.now)
  useEffect(() => {
    if (open.current) live.move(open.current, offset, limit)
  }, [offset, limit])
  return window
}

/** The clusters, with how current what is shown of each is; without a connection, nobody knows. */
export function useFleet(): { clusters: Cluster[]; connected: boolean } {
  const clusters = useSyncExternalStore(
    (f) => live.onFleet(f),
    () => live.clusters,
  )
  const connected = useSyncExternalStore(
    (f) => live.onFleet(f),
    () => live.connected,
  )
  return { clusters, connected }
}
