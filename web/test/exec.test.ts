import { describe, expect, it } from "vitest"
import { type Ended, Exec, execQuery, readStatus, type Socket } from "../src/shell/exec"

class FakeSocket implements Socket {
  binaryType = ""
  readyState = 0
  sent: string[] = []
  closed = false
  onopen: Socket["onopen"] = null
  onmessage: Socket["onmessage"] = null
  onclose: Socket["onclose"] = null
  send(data: Uint8Array) {
    this.sent.push(`${data[0]}:${new TextDecoder().decode(data.subarray(1))}`)
  }
  close() {
    this.closed = true
  }
  open() {
    this.readyState = 1
    this.onopen?.({})
  }
  say(channel: number, text: string) {
    this.onmessage?.({ data: new Uint8Array([channel, ...new TextEncoder().encode(text)]).buffer })
  }
}

function start() {
  const socket = new FakeSocket()
  const shown: string[] = []
  const ends: Ended[] = []
  const exec = new Exec(socket, {
    opened: () => shown.push("open"),
    write: (data) => shown.push(new TextDecoder().decode(data)),
    ended: (how) => ends.push(how),
  })
  return { socket, shown, ends, exec }
}

describe("Exec", () => {
  it("sends the last size and the input once it is open", () => {
    const { socket, shown, exec } = start()
    exec.resize(80, 24)
    exec.resize(100, 30)
    exec.type("ls\r")
    expect(socket.sent).toEqual([])
    socket.open()
    exec.type("x")
    exec.resize(0, 5)
    exec.ping()
    expect(socket.sent).toEqual(['4:{"Width":100,"Height":30}', "0:ls\r", "0:x", '4:{"Width":100,"Height":30}'])
    expect(shown).toEqual(["open"])
  })
  it("shows both outputs, and ends once with the exit code", () => {
    const { socket, shown, ends } = start()
    socket.open()
    socket.say(1, "")
    socket.say(1, "out")
    socket.say(2, "err")
    socket.say(3, '{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}')
    socket.onclose?.({ code: 1000, reason: "" })
    expect(shown).toEqual(["open", "out", "err"])
    expect(ends).toEqual([{ code: 3, message: "" }])
    expect(socket.closed).toBe(true)
  })
  it("reports the end of the connection, unless it was closed here", () => {
    const lost = start()
    lost.socket.onclose?.({ code: 1006, reason: "" })
    expect(lost.ends).toEqual([{ message: "The connection ended (1006)" }])
    const left = start()
    left.exec.close()
    left.socket.onclose?.({ code: 1000, reason: "" })
    left.exec.type("x")
    expect(left.ends).toEqual([])
  })
})

describe("readStatus", () => {
  it("reads success, refusals and plain texts", () => {
    expect(readStatus('{"status":"Success"}')).toEqual({ code: 0, message: "" })
    expect(readStatus('{"status":"Failure","message":"no such container"}')).toEqual({ message: "no such container" })
    expect(readStatus("exec failed")).toEqual({ message: "exec failed" })
  })
})

it("execQuery passes each argument separately", () => {
  expect(execQuery("web", ["sh", "-c", "a & b"])).toBe("container=web&stdin=true&stdout=true&tty=true&command=sh&command=-c&command=a+%26+b")
})
