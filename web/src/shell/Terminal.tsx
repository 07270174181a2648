import { FitAddon } from "@xterm/addon-fit"
import { Terminal as XTerm } from "@xterm/xterm"
import "@xterm/xterm/css/xterm.css"
import { useEffect, useRef, useState } from "react"
import { request, StatusError, socketURL } from "../hub/client"
import { Notice } from "../part/Notice"
import { t } from "../text/text"
import { type Ended, Exec, PROTOCOL, type Socket } from "./exec"
import "./shell.css"

/** Many proxies close a connection that is silent for a minute. */
const pingEvery = 20_000

/** The errors of container runtimes for a program that is not in the image. */
const noProgram = /executable file .*not found|no such file or directory/i

export default function Terminal({ path, query }: { path: string; query: string }) {
  const host = useRef<HTMLDivElement>(null)
  const [ended, setEnded] = useState<Ended>()
  const [refused, setRefused] = useState<StatusError>()
  useEffect(() => {
    const style = getComputedStyle(host.current!)
    const colour = (name: string) => resolve(host.current!, `var(${name})`)
    const terminal = new XTerm({
      fontFamily: style.getPropertyValue("--mono"),
      fontSize: 13,
      cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      screenReaderMode: true,
      theme: {
        background: colour("--sunken"),
        foreground: colour("--text"),
        cursor: colour("--text"),
        selectionBackground: colour("--accent-soft"),
      },
    })
    const fit = new FitAddon()
    terminal.loadAddon(fit)
    terminal.open(host.current!)
    let opened = false
    const socket = new WebSocket(`${socketURL(path)}?${query}`, [PROTOCOL])
    const exec = new Exec(socket as unknown as Socket, {
      opened: () => {
        opened = true
        terminal.focus()
      },
      write: (data) => terminal.write(data),
      ended: (how) => {
        terminal.options.disableStdin = true
        setEnded(how)
        if (!opened) void why(path, query).then(setRefused)
      },
    })
    // The shell uses Tab, so F6 moves the focus out of the terminal.
    terminal.attachCustomKeyEventHandler((e) => {
      if (e.key !== "F6") return true
      if (e.type === "keydown") host.current?.closest(".stack")?.querySelector("button")?.focus()
      return false
    })
    terminal.onData((text) => exec.type(text))
    terminal.onResize(({ cols, rows }) => exec.resize(cols, rows))
    fit.fit()
    exec.resize(terminal.cols, terminal.rows)
    const watch = new ResizeObserver(() => fit.fit())
    watch.observe(host.current!)
    const ping = setInterval(() => exec.ping(), pingEvery)
    return () => {
      clearInterval(ping)
      watch.disconnect()
      exec.close()
      terminal.dispose()
    }
  }, [path, query])
  return (
    <>
      {refused && (
        <Notice tone="unknown" title={t("object.shellRefused")}>
          {refused.message}
        </Notice>
      )}
      {ended && !refused && (
        <Notice
          tone={ended.code === 0 ? "plain" : "warn"}
          title={
            ended.code === undefined ? t(noProgram.test(ended.message) ? "object.noProgram" : "object.shellLost") : t("object.shellEnded", { code: ended.code })
          }
        >
          {ended.message}
        </Notice>
      )}
      <section className={refused ? "hidden" : "shell-screen"} ref={host} aria-label={t("object.shell")} />
    </>
  )
}

/**
 * Browsers do not report why a WebSocket was refused. The same request without the upgrade
 * returns the reason.
 */
async function why(path: string, query: string): Promise<StatusError | undefined> {
  try {
    await request(`${path}?${query}`)
  } catch (e) {
    if (e instanceof StatusError && !/upgrade/i.test(e.message)) return e
  }
  return undefined
}

function resolve(beside: HTMLElement, colour: string): string {
  const probe = document.createElement("span")
  probe.style.color = colour
  beside.append(probe)
  const found = getComputedStyle(probe).color
  probe.remove()
  return found
}
