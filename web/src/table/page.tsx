import { useCallback, useMemo, useRef, useState } from "react"
import { useLocation, useSearch as useURL } from "wouter"
import { StatusError } from "../hub/client"
import { freshness, toneOfFreshness } from "../hub/freshness"
import { findKind, lastKinds, useKindsOf } from "../hub/kinds"
import { groupOf, objectLink, placementsLink, whyLink } from "../hub/link"
import { type Row, useFleet, useWindow, type Window } from "../hub/live"
import { nothing } from "../hub/window"
import { useActions } from "../palette/actions"
import { openPalette } from "../palette/open"
import { useAge } from "../part/Age"
import { Button, SignButton } from "../part/Button"
import { Icon } from "../part/Icon"
import { later } from "../part/later"
import { Menu, MenuChoice, MenuLabel, MenuToggle } from "../part/Menu"
import { Empty, Failure, Notice } from "../part/Notice"
import { useNarrow } from "../part/narrow"
import { Page } from "../part/Page"
import { t } from "../text/text"
import { firstRows } from "./ahead"
import { everyColumn, shown } from "./columns"
import { Facets } from "./Facets"
import { Grid } from "./Grid"
import { QueryBox } from "./QueryBox"
import { splitKind, toggled } from "./query"
import { useHubObjects, useSearch } from "./search"
import { type Act, actsOf, actsOfAll, idOf, toggle } from "./selection"
import { every, question, readState, type TableState, writeState } from "./state"
import { Views } from "./Views"
import "./table.css"

const Bulk = later(() => import("./Bulk"), 0)
const groupings = ["cluster", "namespace", "kind", "phase"] as const

const refOf = (row: Row) => ({ cluster: row.cluster, kind: row.kind, group: groupOf(row.apiVersion), namespace: row.namespace, name: row.name })

export default function TablePage() {
  const url = useURL()
  const [, navigate] = useLocation()
  const state = useMemo(() => readState(url), [url])
  const kinds = useKindsOf(state.hub)
  const narrow = useNarrow()
  const { kind, path, query } = useMemo(() => question(state, kinds ?? (state.hub ? [] : lastKinds())), [state, kinds])
  const all = state.kind === every && !state.hub

  const [asked, setAsked] = useState(firstRows)
  const onWindow = useCallback((offset: number, limit: number) => setAsked({ offset, limit }), [])
  const live = useWindow(all || state.hub ? undefined : path, query, asked.offset, asked.limit)
  const searched = useSearch(all ? query : undefined)
  const hubs = useHubObjects(state.hub ? kind : undefined, state.q)
  // Before the kinds are loaded, the list is requested for the kind that this tab remembers. Its
  // rows are shown; a refusal or an empty answer is ignored.
  const window = all ? searched : state.hub ? hubs : kinds || live.rows.length ? live : nothing

  const [selected, setSelected] = useState(new Map<string, Row>())
  const [cursor, setCursor] = useState<{ index: number; row?: Row }>({ index: -1 })
  // The action in progress, and its rows: those that were selected when it began.
  const [doing, setDoing] = useState<{ act: Act; rows: Row[] }>()
  const grid = useRef<HTMLDivElement>(null)

  const set = (change: Partial<TableState>) => {
    const next = { ...state, ...change }
    if (change.q !== undefined && !next.hub) {
      const split = splitKind(change.q, kinds ?? [])
      if (split.kind) {
        next.kind = split.kind.of
        next.q = split.rest
      }
    }
    if (next.kind !== state.kind || next.hub !== state.hub) {
      next.columns = undefined
      if (next.kind === every) next.sort = ""
      setSelected(new Map())
    }
    setCursor({ index: -1 })
    setAsked(firstRows)
    navigate(`/table?${writeState(next)}`, { replace: change.q !== undefined })
  }

  const layoutOf = state.hub ? "hub" : "fleet"
  const layout = { namespaced: kind?.namespaced ?? true, kinds: all }
  // While another query of the kind is pending, its columns stay, and with them the header for
  // sorting.
  const lastColumns = useRef<{ of: string; columns: Window["columns"] }>(undefined)
  const of = `${layoutOf} ${path}`
  if (window.columns.length) lastColumns.current = { of, columns: window.columns }
  const there = lastColumns.current?.of === of ? lastColumns.current.columns : window.columns
  // Widths are those for the first rows of a query, so they do not change by scrolling.
  const first = useRef<{ key: string; window: Window }>(undefined)
  const layoutKey = `${of} ${there.map((c) => c.name).join()}`
  if (window.rows.length && first.current?.key !== layoutKey) first.current = { key: layoutKey, window }
  const sample = first.current?.key === layoutKey ? first.current.window : undefined
  // biome-ignore lint/correctness/useExhaustiveDependencies: layoutKey identifies the columns.
  const columns = useMemo(
    () => shown(there, sample?.rows ?? [], state.columns, layout).map((c) => (state.hub ? { ...c, sort: undefined } : c)),
    [layoutKey, sample, state.columns?.join(), layout.namespaced],
  )

  const kindOf = (row: Row) => findKind(kinds ?? [], groupOf(row.apiVersion) ? `${row.kind}.${groupOf(row.apiVersion)}` : row.kind)
  const link = (row: Row, tab?: string) => objectLink(refOf(row), tab ? { tab } : {})
  // The cursor follows its row. It is at an index only until the row there is known.
  const seat = window.rows.findIndex((row, i) => (cursor.row ? idOf(row) === idOf(cursor.row) : i + window.offset === cursor.index))
  const current = window.rows[seat]
  if (current && !(cursor.row && cursor.index === seat + window.offset)) setCursor({ index: seat + window.offset, row: current })
  const targets = selected.size ? [...selected.values()] : current ? [current] : []
  const acts = kind ? actsOf(kind) : actsOfAll(targets.flatMap((row) => kindOf(row) ?? []))
  const begin = (act: Act) => targets.length > 0 && targets.every(kindOf) && setDoing({ act, rows: targets })

  const toHub = () => set({ hub: !state.hub, q: "", sort: "", group: "" })
  const groupChoices = [
    { value: "", label: t("table.noGroup") },
    ...groupings.filter((g) => all || g !== "kind").map((g) => ({ value: g, label: t(`table.${g}`) })),
  ]

  useActions(() => {
    const section = t("table.rows")
    const to = (id: string, keys: string, title: string, tab: string) => ({
      id: `table.${id}`,
      section,
      keys,
      title,
      quiet: !current,
      run: () => current && navigate(link(current, tab)),
    })
    // The grid handles its keys while it has the focus. Elsewhere, the first key press moves the
    // focus there.
    const press = (keys: string, title: string) => ({
      id: `table.${keys}`,
      section,
      keys,
      title,
      quiet: true,
      run: () => {
        const element = grid.current?.querySelector<HTMLElement>("[role=grid]")
        element?.focus()
        element?.dispatchEvent(new KeyboardEvent("keydown", { key: keys, bubbles: true, cancelable: true }))
      },
    })
    return [
      press("j", t("table.down")),
      press("k", t("table.up")),
      press("G", t("table.bottom")),
      { ...press("g g", t("table.top")), run: () => press("Home", "").run() },
      { id: "object.open", quiet: true, section, keys: "Enter", title: t("object.open"), run: () => current && navigate(link(current)) },
      to("describe", "d", t("table.describe"), "overview"),
      to("logs", "l", t("object.logs"), "logs"),
      to("shell", "s", t("object.shell"), "shell"),
      to("edit", "e", t("object.edit"), "yaml"),
      to("yaml", "y", t("object.yaml"), "yaml"),
      { id: "table.mark", section, keys: "x", title: t("table.mark"), run: () => current && setSelected((s) => toggle(s, current)) },
      ...(state.hub && current
        ? [
            { id: "table.why", section, keys: "w", title: t("object.why"), run: () => navigate(whyLink(refOf(current))) },
            { id: "table.placements", section, keys: "p", title: t("object.placements"), run: () => navigate(placementsLink(refOf(current))) },
          ]
        : []),
      ...(selected.size ? [{ id: "table.unselect", section, title: t("table.unselect"), run: () => setSelected(new Map()) }] : []),
      ...(state.q ? [{ id: "table.clear", section, title: t("table.clearQuery"), run: () => set({ q: "" }) }] : []),
      { id: "table.hub", section, title: t(state.hub ? "palette.ofFleet" : "palette.ofHub"), words: "hub", run: toHub },
      ...(state.hub
        ? []
        : groupChoices.map((g) => ({ id: `table.group.${g.value}`, section, title: `${t("table.group")}: ${g.label}`, run: () => set({ group: g.value }) }))),
      ...acts.map((a) => ({
        id: `table.${a}`,
        section,
        keys: a === "delete" ? "ctrl+d" : undefined,
        quiet: targets.length === 0,
        title: t(`table.${a}`),
        run: () => begin(a),
      })),
    ]
  }, [current, selected, kind, url])

  const name = all ? t("table.everyKind") : (kind?.kind ?? state.kind)
  const unknownKind = kinds !== undefined && !all && !kind
  return (
    <Page
      full
      title={name}
      heading={
        <button type="button" className="kind-button" title={t("table.chooseKind")} onClick={() => openPalette("command")}>
          {name}
          <Icon name="down" />
        </button>
      }
      about={<Count window={window} />}
      actions={
        <>
          <Button aria-pressed={state.hub} title={t("table.hubAbout")} onClick={toHub}>
            {t("table.hub")}
          </Button>
          <Menu trigger={<SignButton sign="group" label={t("table.group")} disabled={state.hub} aria-pressed={state.group !== ""} />}>
            <MenuChoice label={t("table.group")} value={state.group} onChange={(group) => set({ group })} options={groupChoices} />
          </Menu>
          <Menu trigger={<SignButton sign="columns" label={t("table.columns")} />}>
            {narrow && (
              <>
                <MenuChoice
                  label={t("table.sort")}
                  value={state.sort}
                  onChange={(sort) => set({ sort })}
                  options={columns.flatMap((c) => (c.sort ? ["", " desc"].map((way) => ({ value: c.sort + way, label: `${c.name} ${way ? "↓" : "↑"}` })) : []))}
                />
                <MenuLabel>{t("table.columns")}</MenuLabel>
              </>
            )}
            {everyColumn(there, layout).map((c) => (
              <MenuToggle
                key={c.name}
                checked={columns.some((s) => s.name === c.name)}
                onChange={(on) => {
                  const names = columns.map((s) => s.name)
                  set({ columns: on ? [...names, c.name] : names.filter((n) => n !== c.name) })
                }}
              >
                {c.name}
              </MenuToggle>
            ))}
          </Menu>
          <Views search={writeState(state)} onOpen={(search) => navigate(`/table?${search}`)} />
        </>
      }
    >
      <QueryBox
        value={state.q}
        kinds={kinds ?? []}
        path={state.hub ? undefined : path}
        onChange={(q) => q !== state.q && set({ q })}
        onLeave={() => grid.current?.querySelector<HTMLElement>("[role=grid]")?.focus()}
      />
      <Trouble window={window} />
      {unknownKind ? (
        <Empty title={t("table.noKind", { kind: state.kind })}>{t("table.noKindMore")}</Empty>
      ) : (
        <div className="table-area" ref={grid}>
          {state.group && path && !state.hub && (
            <Facets
              path={path}
              query={query}
              by={state.group}
              q={state.q}
              onToggle={(value) => set(state.group === "kind" ? { kind: value } : { q: toggled(state.q, state.group, value) })}
            />
          )}
          <Grid
            question={`${of} ${query}`}
            label={t(state.hub ? "table.gridHub" : "table.grid", { kind: name })}
            window={window}
            columns={columns}
            sort={state.sort}
            selected={selected}
            at={cursor.index}
            current={current}
            link={link}
            narrow={narrow}
            onWindow={onWindow}
            onSort={(sort) => set({ sort })}
            onAt={(index, row) => setCursor({ index, row })}
            onToggle={(row) => setSelected((s) => toggle(s, row))}
            onOpen={(row) => navigate(link(row))}
            empty={<Nothing window={window} name={name} q={state.q} all={all} hub={state.hub} onClear={() => set({ q: "" })} />}
          />
        </div>
      )}
      {selected.size > 0 && (
        <div className="selection" role="toolbar" aria-label={t("table.selected", { n: selected.size })}>
          <strong>{t("table.selected", { n: selected.size })}</strong>
          {acts.map((a) => (
            <Button key={a} look={a === "delete" ? "danger" : "plain"} onClick={() => begin(a)}>
              {t(`table.${a}`)}
            </Button>
          ))}
          <Button look="quiet" onClick={() => setSelected(new Map())}>
            {t("table.unselect")}
          </Button>
        </div>
      )}
      {doing && <Bulk {...doing} kindOf={(row) => kindOf(row)!} onClose={() => setDoing(undefined)} onDone={() => setSelected(new Map())} />}
    </Page>
  )
}

function Count({ window: w }: { window: Window }) {
  if (w.state === "loading" || w.state === "refused" || w.state === "unknown") return <span>&nbsp;</span>
  return <output>{t(w.exact ? "table.count" : "table.countAtLeast", { n: w.total })}</output>
}

/** Messages about the rows: refused or stale, and the API's warnings. */
function Trouble({ window: w }: { window: Window }) {
  const age = useAge(w.since)
  return (
    <>
      {w.state === "refused" && w.status && <Failure error={new StatusError(w.status)} />}
      {w.state === "stale" && <Notice tone="unknown">{t("table.stale", { age })}</Notice>}
      {w.warnings.map((text) => (
        <Notice key={text} tone="warn">
          {text}
        </Notice>
      ))}
    </>
  )
}

/** Shown without rows, for one of four reasons. */
type NothingProps = { window: Window; name: string; q: string; all: boolean; hub: boolean; onClear: () => void }

function Nothing({ window: w, name, q, all, hub, onClear }: NothingProps) {
  const fleet = useFleet()
  const away = fleet.clusters.filter((c) => toneOfFreshness(freshness(fleet, c.name)) === "unknown").length
  if (w.state === "loading") {
    return (
      <div className="grid-loading" role="row">
        <span role="gridcell" className="hidden">
          {t("common.loading")}
        </span>
        {Array.from({ length: 14 }, (_, i) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: lines differ only by number.
          <span key={i} className="skeleton-line" style={{ width: `${88 - ((i * 29) % 46)}%` }} aria-hidden="true" />
        ))}
      </div>
    )
  }
  const [title, text] =
    w.state === "refused"
      ? [t("table.refused"), ""]
      : w.state === "unknown"
        ? [t("table.unknown"), `${w.status?.message ?? ""} ${t("table.unknownMore")}`]
        : [
            all ? t("table.emptyEvery") : t(q ? "table.empty" : "table.emptyAll", { kind: name }),
            !w.exact ? t("table.emptyCut") : hub ? "" : away ? t("table.emptyUnknown", { n: away }) : t("table.emptyMore"),
          ]
  return (
    <div role="row" className={`grid-nothing ${w.state}`}>
      <div role="gridcell">
        <Empty title={title}>
          <p>{text}</p>
          {q && <Button onClick={onClear}>{t("table.clearQuery")}</Button>}
        </Empty>
      </div>
    </div>
  )
}
