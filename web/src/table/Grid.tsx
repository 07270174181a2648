import { type KeyboardEvent, memo, type ReactNode, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react"
import { type Row, useFleet, type Window } from "../hub/live"
import { Age } from "../part/Age"
import { Icon } from "../part/Icon"
import { Dot } from "../part/Mark"
import { t } from "../text/text"
import { cellOf, freshnessOfRow, nextSort, type Shown, staleColumn, textOf, toneOfCell } from "./columns"
import { asked, type Frame, heightOf, moved, ratioOf, reveal, visible } from "./rows"
import { idOf } from "./selection"

type Props = {
  label: string
  /** Identifies the query: rows of another query begin at the top. */
  question: string
  window: Window
  columns: Shown[]
  sort: string
  selected: Map<string, Row>
  at: number
  /** The row of the cursor, if it still exists. */
  current?: Row
  link: (row: Row) => string
  onWindow: (offset: number, limit: number) => void
  onSort: (sort: string) => void
  onAt: (index: number, row: Row | undefined) => void
  onToggle: (row: Row) => void
  onOpen: (row: Row) => void
  narrow: boolean
  empty: ReactNode
}

/** A window of a list. Only the rows on screen are in the document. */
export function Grid(p: Props) {
  const body = useRef<HTMLDivElement>(null)
  const [top, setTop] = useState(0)
  const [size, setSize] = useState({ view: 600, row: 28 })
  const virtual = useRef(0)
  const { window: w, narrow } = p
  const frame: Frame = { total: w.total, row: narrow ? 56 : size.row, view: size.view }
  const ratio = ratioOf(frame)
  const { first, count } = visible(frame, top)

  useLayoutEffect(() => {
    const element = body.current!
    const measure = () => {
      const row = Number.parseInt(getComputedStyle(element).getPropertyValue("--row"), 10) || 28
      setSize({ view: element.clientHeight, row })
    }
    measure()
    const observer = new ResizeObserver(measure)
    observer.observe(element)
    return () => observer.disconnect()
  }, [])

  // biome-ignore lint/correctness/useExhaustiveDependencies: another question starts at the top.
  useLayoutEffect(() => go(0), [p.question])

  const { onWindow } = p
  const want = asked(first, count)
  useEffect(() => onWindow(want.offset, want.limit), [onWindow, want.offset, want.limit])

  /** Sets the position among the rows; the scroll bar follows. */
  const go = useCallback(
    (to: number) => {
      virtual.current = Math.max(0, Math.min(to, frame.total * frame.row - frame.view))
      body.current!.scrollTop = virtual.current / ratio
      setTop(virtual.current)
    },
    [frame.total, frame.row, frame.view, ratio],
  )
  const onScroll = () => {
    const scrolled = body.current!.scrollTop
    // The browser rounds the scroll position that go() set; the exact position is kept.
    if (Math.abs(scrolled - virtual.current / ratio) > 1) virtual.current = scrolled * ratio
    setTop(virtual.current)
  }

  // If one pixel of the scroll bar is many rows, the wheel scrolls by rows instead.
  useEffect(() => {
    const element = body.current!
    if (ratio === 1) return
    const wheel = (e: WheelEvent) => {
      if (e.ctrlKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) return
      e.preventDefault()
      go(virtual.current + e.deltaY * (e.deltaMode === 1 ? frame.row : 1))
    }
    element.addEventListener("wheel", wheel, { passive: false })
    return () => element.removeEventListener("wheel", wheel)
  }, [ratio, go, frame.row])

  const rowAt = (index: number): Row | undefined => w.rows[index - w.offset]
  const onKeyDown = (e: KeyboardEvent) => {
    if (e.altKey || e.metaKey || e.target !== e.currentTarget) return
    const to = moved(e.ctrlKey ? `ctrl+${e.key}` : e.key, p.at, w.total, Math.max(1, Math.floor(frame.view / frame.row) - 1))
    const row = p.current
    if (to !== undefined) {
      p.onAt(to, rowAt(to))
      const shift = to < 0 ? undefined : reveal(frame, virtual.current, to)
      if (shift !== undefined) go(shift)
    } else if (e.key === "Enter" && row) p.onOpen(row)
    else if ((e.key === " " || e.key === "x") && row) p.onToggle(row)
    else return
    e.preventDefault()
    e.stopPropagation()
  }

  const template = `32px ${p.columns.map((c) => c.width).join(" ")}`
  const least = p.columns.reduce((sum, c) => sum + (Number.parseInt(/\d+/.exec(c.width)?.[0] ?? "80", 10) || 80), 32)
  const scrollTop = top / ratio
  const fleet = useFleet()
  const stale = staleColumn(w.columns)
  const rows: ReactNode[] = []
  const pool = Math.ceil(frame.view / frame.row) + 10
  // The callbacks of rows stay the same, so that scrolling renders only new rows.
  const latest = useRef(p)
  latest.current = p
  const act = useMemo<Acts>(
    () => ({
      link: (row) => latest.current.link(row),
      onAt: (index, row) => latest.current.onAt(index, row),
      onToggle: (row) => latest.current.onToggle(row),
      onOpen: (row) => latest.current.onOpen(row),
    }),
    [],
  )
  for (let i = first; i < first + count; i++) {
    const row = rowAt(i)
    const is = row && freshnessOfRow(fleet, row, stale)
    const y = ratio === 1 ? i * frame.row : scrollTop + (i * frame.row - top)
    rows.push(
      <GridRow
        // Elements of rows that leave the screen are reused for rows that enter it.
        key={i % pool}
        columns={p.columns}
        narrow={narrow}
        act={act}
        index={i}
        row={row}
        y={y}
        height={frame.row}
        template={template}
        current={!!row && row === p.current}
        selected={!!row && p.selected.has(idOf(row))}
        old={is !== undefined && is.state !== "current"}
        since={is?.since}
        stale={stale}
      />,
    )
  }
  return (
    <div className={`grid ${w.state} ${narrow ? "narrow" : ""}`}>
      <div
        ref={body}
        className="grid-body"
        role="grid"
        aria-label={p.label}
        aria-rowcount={w.exact ? w.total + 1 : -1}
        aria-multiselectable="true"
        aria-activedescendant={p.at >= first && p.at < first + count ? `row-${p.at}` : undefined}
        aria-busy={w.state === "loading"}
        tabIndex={0}
        onScroll={onScroll}
        onKeyDown={onKeyDown}
      >
        <div className={narrow ? "grid-head hidden" : "grid-head"} role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, minWidth: least }}>
          <span role="columnheader">
            <span className="hidden">{t("table.mark")}</span>
          </span>
          {p.columns.map((c) => (
            <span key={c.name} role="columnheader" aria-sort={sorted(p.sort, c.sort)}>
              {c.sort ? (
                <button
                  type="button"
                  tabIndex={narrow ? -1 : undefined}
                  title={t("table.sortBy", { column: c.name })}
                  onClick={() => p.onSort(nextSort(p.sort, c.sort!))}
                >
                  {c.name}
                  {p.sort.startsWith(c.sort) && <Icon name={p.sort.endsWith(" desc") ? "down" : "up"} />}
                </button>
              ) : (
                c.name
              )}
            </span>
          ))}
        </div>
        {w.total > 0 ? (
          <div className="grid-rows" role="rowgroup" style={{ height: heightOf(frame), minWidth: narrow ? undefined : least }}>
            {rows}
          </div>
        ) : (
          p.empty
        )}
      </div>
    </div>
  )
}

function sorted(sort: string, column: string | undefined): "ascending" | "descending" | undefined {
  if (!column) return undefined
  return sort === column ? "ascending" : sort === `${column} desc` ? "descending" : undefined
}

type Acts = Pick<Props, "link" | "onAt" | "onToggle" | "onOpen">
type RowProps = {
  index: number
  row?: Row
  y: number
  height: number
  template: string
  columns: Shown[]
  narrow: boolean
  current: boolean
  selected: boolean
  /** The row is the last known one, from `since`. */
  old: boolean
  since?: string
  stale: number
  act: Acts
}

const GridRow = memo(function GridRow({ index, row, y, height, template, columns, narrow, current, selected, old, since, stale, act }: RowProps) {
  const at = { transform: `translateY(${y}px)`, height, gridTemplateColumns: narrow ? undefined : template }
  if (!row) {
    return (
      <div id={`row-${index}`} role="row" aria-rowindex={index + 2} className="grid-row absent" style={at}>
        <span role="gridcell">
          <span className="skeleton-line" style={{ width: `${40 + ((index * 23) % 40)}%` }} />
        </span>
      </div>
    )
  }
  const look = `grid-row ${current ? "current" : ""} ${selected ? "selected" : ""} ${row.deleted ? "leaving" : ""} ${old ? "last-known" : ""}`
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the grid handles keys.
    <div id={`row-${index}`} role="row" aria-rowindex={index + 2} aria-selected={selected} className={look} style={at} onClick={() => act.onAt(index, row)}>
      <span role="gridcell" className="grid-mark">
        <input type="checkbox" tabIndex={-1} aria-label={t("table.select", { name: row.name })} checked={selected} onChange={() => act.onToggle(row)} />
      </span>
      {narrow ? (
        <NarrowCells row={row} columns={columns} since={since} stale={stale} link={act.link(row)} onOpen={() => act.onOpen(row)} />
      ) : (
        columns.map((c) => (
          <span key={c.name} role="gridcell" className={c.name === "Name" ? "grid-name" : undefined}>
            {since && c.index === stale ? <Age since={since} /> : <Cell row={row} column={c} link={act.link(row)} onOpen={() => act.onOpen(row)} />}
          </span>
        ))
      )}
    </div>
  )
})

function Cell({ row, column, link, onOpen }: { row: Row; column: Shown; link: string; onOpen: () => void }) {
  if (column.name === "Age") return <Age since={row.created} />
  const text = textOf(cellOf(row, column))
  if (column.name === "Name") {
    return (
      <a
        href={`/console${link}`}
        tabIndex={-1}
        title={text}
        onClick={(e) => {
          if (e.ctrlKey || e.metaKey || e.shiftKey) return
          e.preventDefault()
          onOpen()
        }}
      >
        {text}
      </a>
    )
  }
  const tone = toneOfCell(column.name, text)
  return (
    <span className="grid-text" title={text.length > 24 ? text : undefined}>
      {tone !== "plain" && <Dot tone={tone} />}
      {text}
    </span>
  )
}

/** On a phone a row has two lines: name and state, then the rest. */
type NarrowProps = { row: Row; columns: Shown[]; since?: string; stale: number; link: string; onOpen: () => void }

function NarrowCells({ row, columns, since, stale, link, onOpen }: NarrowProps) {
  const name = columns.find((c) => c.name === "Name")
  const states = columns.filter((c) => toneOfCell(c.name, textOf(cellOf(row, c))) !== "plain")
  const state = states.find((c) => c.name === "Status") ?? states[0]
  const rest = columns.filter((c) => c !== name && c !== state && c.name !== "Age" && !(since && c.index === stale)).map((c) => textOf(cellOf(row, c)))
  return (
    <span role="gridcell" className="narrow-cells">
      <span className="narrow-line">
        {name && <Cell row={row} column={name} link={link} onOpen={onOpen} />}
        {state && <Cell row={row} column={state} link={link} onOpen={onOpen} />}
      </span>
      <span className="narrow-line muted">
        <span className="grid-text">{rest.filter((text) => text && text !== "<none>").join(" · ")}</span>
        {since && (
          <span>
            {t("table.asOf")} <Age since={since} />
          </span>
        )}
        <Age since={row.created} />
      </span>
    </span>
  )
}
