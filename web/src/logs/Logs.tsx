import { useVirtualizer } from "@tanstack/react-virtual"
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react"
import { type Obj, own } from "../hub/client"
import type { Ref } from "../hub/link"
import { containersOf } from "../object/object"
import { Answered } from "../part/Answered"
import { Button, IconButton } from "../part/Button"
import { Input } from "../part/Field"
import { Icon } from "../part/Icon"
import { Badge } from "../part/Mark"
import { Empty, Notice } from "../part/Notice"
import { Select } from "../part/Select"
import { t, time } from "../text/text"
import { follow, type Health, type Source } from "./follow"
import "./logs.css"
import { download, type Line, Ring, search } from "./merge"
import { clusterOf, usePods } from "./pods"

/** The most containers that are read at once: each is a stream through the hub. */
const streams = 50
const kept = 50_000

/** The logs of all pods of an object, in every cluster that has some. */
export default function Logs({ of, object, container }: { of: Ref; object: Obj; container: string }) {
  const answer = usePods(of, object)
  const { data } = answer
  const [only, setOnly] = useState(container)
  const sources = useMemo(() => (data ? sourcesOf(data.items, of) : []), [data, of])
  const containers = [...new Set(sources.map((s) => s.container))].sort()
  const chosen = sources.filter((s) => !only || s.container === only)
  const had = useRef(false)
  had.current ||= sources.length > 0
  // Lines that were read stay when their pods are gone, and while the hub cannot list the pods.
  if (!had.current) return data ? <Empty title={t("object.noPods")} /> : <Answered answer={answer} lines={8} />
  return (
    <>
      <Answered answer={answer} lines={0} />
      <Streams
        key={only}
        sources={chosen.slice(0, streams)}
        left={chosen.length - streams}
        choice={
          <Select
            label={t("object.container")}
            value={only}
            onChange={setOnly}
            options={[{ value: "", label: t("object.allContainers") }, ...containers.map((value) => ({ value, label: value }))]}
          />
        }
      />
    </>
  )
}

function sourcesOf(pods: Obj[], of: Ref): Source[] {
  return pods.flatMap((pod) => {
    const where = clusterOf(pod, of)
    const path = `${own(where)}/api/v1/namespaces/${encodeURIComponent(pod.metadata.namespace ?? "")}/pods/${encodeURIComponent(pod.metadata.name)}/log`
    const name = of.cluster ? pod.metadata.name : `${where}/${pod.metadata.name}`
    return containersOf(pod)
      .filter((c) => c.state !== "")
      .map((c) => ({ cluster: where, path, container: c.name, name: `${name}/${c.name}`, uid: pod.metadata.uid }))
  })
}

const idOf = (source: Source) => `${source.name} ${source.uid}`

type Streams = { ring: Ring; names: Map<number, string>; health: Map<string, Health> }

/** Reads a stream for each source. Streams open and close with the pods; their lines stay. */
function useStreams(sources: Source[], previous: boolean): { lines: readonly Line[]; names: Map<number, string>; health: Map<string, Health> } {
  const state = useRef<Streams>({ ring: new Ring(kept), names: new Map(), health: new Map() })
  const open = useRef(new Map<string, { abort: AbortController; name: string }>())
  const [, changed] = useState(0)
  const [lines, setLines] = useState<readonly Line[]>([])
  const tail = Math.min(1000, Math.ceil(kept / Math.max(1, sources.length)))

  // biome-ignore lint/correctness/useExhaustiveDependencies: only changed sources open or close.
  useEffect(() => {
    const { ring, names, health } = state.current
    const wanted = new Set(sources.map(idOf))
    for (const [id, { abort, name }] of open.current) {
      if (wanted.has(id)) continue
      abort.abort()
      open.current.delete(id)
      health.delete(name)
    }
    for (const source of sources) {
      if (open.current.has(idOf(source))) continue
      const abort = new AbortController()
      open.current.set(idOf(source), { abort, name: source.name })
      const stream = names.size
      names.set(stream, source.name)
      health.set(source.name, { state: "opening", message: "" })
      void follow(
        source,
        stream,
        ring,
        tail,
        previous,
        (how) => {
          if (!abort.signal.aborted) health.set(source.name, how)
          changed((n) => n + 1)
        },
        abort.signal,
      )
    }
  }, [sources.map(idOf).join(" "), previous])

  useEffect(() => {
    // Lines are shown a few times a second, however many come.
    const timer = setInterval(() => setLines(state.current.ring.lines()), 200)
    const streams = open.current
    return () => {
      clearInterval(timer)
      for (const { abort } of streams.values()) abort.abort()
      streams.clear()
    }
  }, [])
  return { lines, names: state.current.names, health: state.current.health }
}

function Streams(props: { sources: Source[]; left: number; choice: ReactNode }) {
  const [previous, setPrevious] = useState(false)
  return <Merged key={String(previous)} {...props} previous={previous} onPrevious={setPrevious} />
}

type MergedProps = { sources: Source[]; left: number; choice: ReactNode; previous: boolean; onPrevious: (on: boolean) => void }

function Merged({ sources, left, choice, previous, onPrevious }: MergedProps) {
  const { lines: all, names, health } = useStreams(sources, previous)
  const [paused, setPaused] = useState<readonly Line[]>()
  const [wanted, setWanted] = useState("")
  const [at, setAt] = useState(0)
  const [wrap, setWrap] = useState(false)
  const lines = paused ?? all
  const found = useMemo(() => search(lines, wanted), [lines, wanted])
  const current = found[Math.min(at, found.length - 1)]
  const failed = [...health].filter(([, h]) => h.state === "failed")
  const step = (by: number) => found.length > 0 && setAt((Math.min(at, found.length - 1) + by + found.length) % found.length)
  const save = () => {
    const url = URL.createObjectURL(new Blob([download(lines, (stream) => names.get(stream) ?? "")], { type: "text/plain" }))
    const link = document.createElement("a")
    link.href = url
    link.download = "logs.txt"
    link.click()
    URL.revokeObjectURL(url)
  }
  return (
    <div className="logs">
      <div className="row">
        {choice}
        <Input
          className="logs-search"
          type="search"
          aria-label={t("object.searchLogs")}
          placeholder={t("object.searchLogs")}
          value={wanted}
          onChange={(e) => {
            setWanted(e.target.value)
            setAt(0)
          }}
          onKeyDown={(e) => e.key === "Enter" && step(e.shiftKey ? -1 : 1)}
        />
        {wanted && (
          <span role="status" className="muted number">
            {found.length > 0 ? t("object.hit", { n: Math.min(at, found.length - 1) + 1, of: found.length }) : t("object.noHit")}
          </span>
        )}
        <Button aria-pressed={paused !== undefined} onClick={() => setPaused(paused ? undefined : all)}>
          <Icon name={paused ? "play" : "pause"} />
          {paused ? t("object.resume", { n: cameSince(paused, all) }) : t("object.pause")}
        </Button>
        <Button aria-pressed={previous} onClick={() => onPrevious(!previous)}>
          {t("object.previous")}
        </Button>
        <Button aria-pressed={wrap} onClick={() => setWrap(!wrap)}>
          {t("object.wrap")}
        </Button>
        <IconButton label={t("object.download")} onClick={save}>
          <Icon name="download" />
        </IconButton>
        <span className="muted number">
          {t("object.lines", { n: lines.length })} · {t("object.streams", { n: sources.length })}
        </span>
      </div>
      {left > 0 && <Notice title={t("object.streamsLeft", { n: left })} />}
      {failed.length > 0 && <Failures failed={failed} />}
      {lines.length === 0 && failed.length < sources.length && <p className="muted">{t("object.noLines")}</p>}
      {lines.length > 0 && <Lines lines={lines} names={names} many={sources.length > 1} wrap={wrap} current={current} wanted={wanted} follow={!paused} />}
    </div>
  )
}

/** The number of lines that arrived since a view was paused. */
function cameSince(paused: readonly Line[], all: readonly Line[]): number {
  const last = paused.reduce((most, line) => Math.max(most, line.number), -1)
  return all.reduce((n, line) => n + (line.number > last ? 1 : 0), 0)
}

function Failures({ failed }: { failed: [string, Health][] }) {
  const reasons = new Map<string, string[]>()
  for (const [name, { message }] of failed) reasons.set(message, [...(reasons.get(message) ?? []), name])
  return (
    <Notice tone="unknown" title={t("object.streamsFailed", { n: failed.length })}>
      {[...reasons].map(([message, of]) => (
        <p key={message} className="selectable">
          {message}
          <br />
          <span className="badges">
            {of.slice(0, 3).map((name) => (
              <Badge key={name}>{name}</Badge>
            ))}
            {of.length > 3 && <Badge>+{of.length - 3}</Badge>}
          </span>
        </p>
      ))}
    </Notice>
  )
}

type LinesProps = {
  lines: readonly Line[]
  names: Map<number, string>
  many: boolean
  wrap: boolean
  current?: number
  wanted: string
  follow: boolean
}

function Lines({ lines, names, many, wrap, current, wanted, follow: following }: LinesProps) {
  const scroller = useRef<HTMLDivElement>(null)
  const atEnd = useRef(true)
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 20,
    overscan: 20,
    getItemKey: (i) => lines[i]?.number ?? i,
  })
  // biome-ignore lint/correctness/useExhaustiveDependencies: new lines scroll a view at its end.
  useEffect(() => {
    if (following && atEnd.current && current === undefined) rows.scrollToIndex(lines.length - 1, { align: "end" })
  }, [lines, following])
  // biome-ignore lint/correctness/useExhaustiveDependencies: new lines keep the found one.
  useEffect(() => {
    if (current !== undefined) rows.scrollToIndex(current, { align: "center" })
  }, [current])
  return (
    <div
      ref={scroller}
      className={`lines ${wrap ? "wrap" : ""}`}
      role="log"
      aria-live="off"
      aria-label={t("object.logs")}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: users scroll it by keyboard.
      tabIndex={0}
      onScroll={(e) => {
        const { scrollHeight, scrollTop, clientHeight } = e.currentTarget
        atEnd.current = scrollHeight - scrollTop - clientHeight < 40
      }}
    >
      <div className="lines-all" style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((row) => {
          const line = lines[row.index]
          if (!line) return null
          return (
            <div
              key={row.key}
              ref={wrap ? rows.measureElement : undefined}
              data-index={row.index}
              className={`line ${row.index === current ? "current" : ""}`}
              style={{ transform: `translateY(${row.start}px)` }}
            >
              <time title={time(line.time / 1000)}>{new Date(line.time / 1000).toISOString().slice(11, 23)}</time>
              {many && <span className="line-from">{names.get(line.stream)}</span>}
              <span className="line-text">{marked(line.text, wanted)}</span>
            </div>
          )
        })}
      </div>
    </div>
  )
}

function marked(text: string, wanted: string): ReactNode {
  const i = wanted ? text.toLowerCase().indexOf(wanted.toLowerCase()) : -1
  if (i < 0) return text
  return (
    <>
      {text.slice(0, i)}
      <mark>{text.slice(i, i + wanted.length)}</mark>
      {text.slice(i + wanted.length)}
    </>
  )
}
