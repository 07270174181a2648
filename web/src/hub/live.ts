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

/** The hub sends a message every 10 s. */
const quietMs = 40_000
const lookMs = 10_000
/** How long a window that was opened ahead waits for the component that shows it. */
const aheadMs = 20_000

/** The one socket of a tab. It is opened when a component first needs it. */
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
  /**
   * Checks whether the session is over: after a refused connection, and at the message `end`. A
   * hub that stops closes the connection without that message.
   */
  doubted: () => void = () => {}

  /**
   * Opens a window for a component that is about to open it with the same path and query. It is
   * closed if another window is opened first, or after aheadMs.
   */
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

  /**
   * Requests other rows for a window. While an answer is pending, only the last of several moves
   * is kept, and sent after it.
   */
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

  /** Connects at once, for example because the machine woke up or has a network again. */
  retry(): void {
    this.attempt = 0
    if (!this.socket) this.connect()
  }

  /** Connects before a component needs it, for a page that is being loaded. */
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
    // The URL has the request for the first window, so the hub answers it before the client can
    // send anything.
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

  /**
   * Closes a connection on which no messages arrive any more: the browser may not notice that it
   * is lost.
   */
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
 * useWindow returns the current rows offset…offset+limit of a list of the fleet API. The path is
 * below the fleet's root, the query has its GET parameters. It never returns rows of another path
 * or query.
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

/** The clusters, with how current their data is. Without a connection that is unknown. */
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
