// The protocol of kubectl exec over a WebSocket: v5.channel.k8s.io. The first byte of each frame
// is its channel.

import { t } from "../text/text"

export const PROTOCOL = "v5.channel.k8s.io"

const channel = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4 } as const

/** Ended is the end of a session. */
export interface Ended {
  /** The exit code, if the program ended. */
  code?: number
  /** The error as the server reported it; "" without an error. */
  message: string
}

/** Socket is the part of WebSocket that Exec uses. */
export interface Socket {
  binaryType: string
  readonly readyState: number
  send(data: Uint8Array<ArrayBuffer>): void
  close(): void
  onopen: ((event: unknown) => void) | null
  onmessage: ((event: { data: unknown }) => void) | null
  onclose: ((event: { code: number; reason: string }) => void) | null
}

export interface Screen {
  opened(): void
  write(data: Uint8Array): void
  ended(how: Ended): void
}

const OPEN = 1

/**
 * Exec is one session. Input and the size of the screen are kept until the socket is open, and
 * sent then.
 */
export class Exec {
  private size: { Width: number; Height: number } | undefined
  private typed: Uint8Array<ArrayBuffer>[] = []
  private status: Ended | undefined
  private over = false

  private readonly socket: Socket
  private readonly screen: Screen

  constructor(socket: Socket, screen: Screen) {
    this.socket = socket
    this.screen = screen
    socket.binaryType = "arraybuffer"
    socket.onopen = () => {
      if (this.size) this.frame(channel.resize, encode(JSON.stringify(this.size)))
      for (const data of this.typed) this.frame(channel.stdin, data)
      this.typed = []
      screen.opened()
    }
    socket.onmessage = ({ data }) => {
      if (data instanceof ArrayBuffer) this.received(new Uint8Array(data))
    }
    socket.onclose = ({ code, reason }) => this.end(this.status ?? { message: reason || t("object.connectionEnded", { code: String(code) }) })
  }

  type(text: string) {
    const data = encode(text)
    if (this.socket.readyState === OPEN) this.frame(channel.stdin, data)
    else if (!this.over) this.typed.push(data)
  }

  resize(columns: number, rows: number) {
    if (columns < 1 || rows < 1) return
    this.size = { Width: columns, Height: rows }
    this.ping()
  }

  /**
   * ping sends the screen size again: proxies close silent connections, and browsers cannot send
   * pings.
   */
  ping() {
    if (this.size && this.socket.readyState === OPEN) this.frame(channel.resize, encode(JSON.stringify(this.size)))
  }

  close() {
    this.over = true // no end is reported
    this.socket.close()
  }

  private frame(to: number, data: Uint8Array<ArrayBuffer>) {
    const frame = new Uint8Array(data.length + 1)
    frame[0] = to
    frame.set(data, 1)
    this.socket.send(frame)
  }

  private received(frame: Uint8Array) {
    const data = frame.subarray(1)
    if (data.length === 0) return // a channel that opens or closes
    if (frame[0] === channel.stdout || frame[0] === channel.stderr) this.screen.write(data)
    else if (frame[0] === channel.status) {
      this.status = readStatus(new TextDecoder().decode(data))
      this.end(this.status)
      this.socket.close()
    }
  }

  private end(how: Ended) {
    if (this.over) return
    this.over = true
    this.typed = []
    this.screen.ended(how)
  }
}

const encode = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text)

interface Status {
  status?: string
  reason?: string
  message?: string
  details?: { causes?: { reason?: string; message?: string }[] }
}

/** readStatus parses the Status at the end of a session. */
export function readStatus(text: string): Ended {
  let status: Status
  try {
    status = JSON.parse(text) as Status
  } catch {
    return { message: text }
  }
  if (status.status === "Success") return { code: 0, message: "" }
  const code = Number(status.details?.causes?.find((cause) => cause.reason === "ExitCode")?.message)
  if (status.reason === "NonZeroExitCode" && Number.isInteger(code)) return { code, message: "" }
  return { message: status.message ?? text }
}

/** execQuery returns the query for a shell, or another command, in a container. */
export function execQuery(container: string, command: string[]): string {
  const query = new URLSearchParams({ container, stdin: "true", stdout: "true", tty: "true" })
  for (const part of command) query.append("command", part)
  return query.toString()
}
