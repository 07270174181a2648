import { Command } from "cmdk"
import { Dialog as Radix } from "radix-ui"
import { type ReactNode, useDeferredValue, useRef, useState } from "react"
import { useLocation } from "wouter"
import { unschedulable } from "../cluster/cluster"
import { setTaint } from "../cluster/taint"
import { useCan } from "../hub/access"
import { useAnswer, useSettled } from "../hub/answer"
import { encode, mirrored, type StatusError, table } from "../hub/client"
import { freshness, toneOfFreshness } from "../hub/freshness"
import { useFleetKinds, useHubKinds } from "../hub/kinds"
import { clusterLink, groupOf, objectLink, tableLink, whyLink } from "../hub/link"
import { useFleet } from "../hub/live"
import { useFocusBack } from "../part/Dialog"
import { KeyHint } from "../part/KeyHint"
import { Dot } from "../part/Mark"
import { Failure } from "../part/Notice"
import { named, quote } from "../table/query"
import { objectsOf } from "../table/search"
import { t } from "../text/text"
import { type Action, useAllActions } from "./actions"
import { command, kindsLike, verbOf } from "./command"
import { linkOf, useNames } from "./hub"
import type { Mode } from "./open"
import "./palette.css"

type Found = ReturnType<typeof objectsOf>[number]

const pauseMs = 60

/** Objects of all kinds and clusters whose names contain the text. */
function useObjects(text: string): { found: Found[]; loading: boolean } {
  const asked = useSettled(text, pauseMs)
  const ask = async (signal: AbortSignal): Promise<Found[]> => {
    const answer = await table(`${mirrored()}/search`, { q: named(asked), limit: 12 }, signal)
    return objectsOf(answer)
  }
  const answer = useAnswer(asked.length > 1 ? ask : undefined, asked)
  return { found: asked.length > 1 ? (answer.data ?? []) : [], loading: asked.length > 1 && answer.loading }
}

const starts = { find: "", command: ":", why: "why ", cordon: "cordon ", uncordon: "uncordon " }

export default function Palette({ mode, onClose }: { mode: Mode; onClose: () => void }) {
  return (
    <Radix.Root open onOpenChange={(open) => !open && onClose()}>
      <Radix.Portal>
        <Radix.Overlay className="overlay" />
        <Radix.Content className="dialog palette" aria-describedby={undefined} onCloseAutoFocus={useFocusBack(true)}>
          <Radix.Title className="hidden">{t(mode === "keys" ? "palette.keys" : "palette.title")}</Radix.Title>
          {mode === "keys" ? <Keys /> : <Find key={mode} start={starts[mode]} onClose={onClose} />}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  )
}

function Find({ start, onClose }: { start: string; onClose: () => void }) {
  const [typed, setTyped] = useState(start)
  const [, navigate] = useLocation()
  const [kinds, onHub] = [useFleetKinds() ?? [], useHubKinds() ?? []]
  const fleet = useFleet()
  const { clusters } = fleet
  const all = useAllActions()
  const asCommand = typed.startsWith(":")
  // Commands and actions match the current input, so that Enter works at once. Other results may
  // come a moment later.
  const now = typed.replace(/^:/, "").trim()
  const text = useDeferredValue(now)
  const mayCordon = useCan({ verb: "patch", group: "cluster.orrery.dev", resource: "clusters" })
  const meant = verbOf(text)
  const verb = meant && (meant.act === "why" || mayCordon) ? meant : undefined
  const { found, loading } = useObjects(asCommand || verb ? "" : text)
  const names = useNames(verb ? (verb.act === "why" ? verb.name : "") : asCommand ? "" : text)
  const [failed, setFailed] = useState<StatusError>()
  const lower = now.toLowerCase()
  const go = (href: string) => {
    onClose()
    navigate(href)
  }
  const taint = (name: string) =>
    setTaint(name, unschedulable, verb?.act === "cordon").then(
      () => go(clusterLink(name)),
      (e: StatusError) => setFailed(e),
    )
  const exact = asCommand || now.includes(" ") ? command(now, kinds) : undefined
  const [first = ""] = text.split(/\s+/)
  const kindsFound = verb ? [] : text ? kindsLike(kinds, first, asCommand ? 12 : 5) : asCommand ? kindsLike(kinds, "", 12) : []
  const otherKinds = kindsFound.filter((k) => k !== exact?.kind)
  const hubFound = text && !verb ? kindsLike(onHub, first, 4) : []
  const cordoned = verb && verb.act !== "why" ? verb.name : undefined
  const clustersFound = (cordoned === undefined && (verb || (asCommand && text)) ? [] : clusters)
    .filter((c) => c.name.toLowerCase().includes(cordoned ?? lower))
    .slice(0, asCommand || !text ? 5 : 8)
  const actionsFound = asCommand
    ? []
    : unique(all)
        .filter((a) => matches(a, lower) && (mayCordon || !["palette.cordon", "palette.uncordon"].includes(a.id)))
        .slice(0, text ? 6 : 60)
  // The first result is selected until the user selects another: results arrive one after
  // another.
  const values = [
    ...(exact ? ["exact"] : []),
    ...actionsFound.map((a) => `action ${a.id}`),
    ...otherKinds.map((k) => `kind ${k.of}`),
    ...hubFound.map((k) => `hub ${k.of}`),
    ...clustersFound.map((c) => `cluster ${c.name}`),
    ...names.all.map((n) => `name ${linkOf(n)}`),
    ...found.map((o) => `object ${idOf(o)}`),
    "every",
  ]
  const [chosen, setChosen] = useState<string>()
  const byHand = useRef(false)
  return (
    <Command
      label={t("palette.title")}
      shouldFilter={false}
      loop
      value={chosen !== undefined && values.includes(chosen) ? chosen : values[0]}
      onValueChange={(value) => byHand.current && setChosen(value)}
      onKeyDownCapture={(e) => {
        // The results are for an earlier, shorter input.
        if (e.key === "Enter" && text !== now && !exact && actionsFound.length === 0) e.preventDefault()
        if (/^(Arrow|Home|End|n$|p$|j$|k$)/.test(e.key) && (e.ctrlKey || e.key.length > 1)) byHand.current = true
      }}
      onPointerMoveCapture={() => {
        byHand.current = true
      }}
    >
      <Command.Input
        className="palette-input"
        autoFocus
        value={typed}
        onValueChange={(next) => {
          byHand.current = false
          setTyped(next)
          setChosen(undefined)
        }}
        placeholder={t(asCommand ? "palette.commandPlaceholder" : "palette.placeholder")}
      />
      <Command.List className="palette-list" label={t("palette.about")}>
        <Command.Empty className="palette-empty">{loading ? t("palette.searching") : t("palette.nothing")}</Command.Empty>
        {exact && (
          <Item value="exact" onSelect={() => go(exact.href)}>
            <span>
              {exact.namespace && exact.kind ? t("palette.inNamespace", { kind: exact.kind.kind, namespace: exact.namespace }) : (exact.kind?.kind ?? now)}
            </span>
            <span className="faint">{`:${now}`}</span>
          </Item>
        )}
        {!asCommand && <Group heading={t("palette.actions")} items={actionsFound.map((a) => actionItem(a, onClose))} />}
        <Group
          heading={t("palette.kinds")}
          items={otherKinds.map((k) => (
            <Item key={k.of} value={`kind ${k.of}`} onSelect={() => go(tableLink(k))}>
              <span>{k.kind}</span>
              <span className="faint">{[...k.shortNames, k.group].filter(Boolean).join(" · ")}</span>
            </Item>
          ))}
        />
        <Group
          heading={t("palette.onHub")}
          items={hubFound.map((k) => (
            <Item key={k.of} value={`hub ${k.of}`} onSelect={() => go(tableLink(k, { hub: "1" }))}>
              <span>{k.kind}</span>
              <span className="faint">{k.group}</span>
            </Item>
          ))}
        />
        <Group
          heading={t("object.clusters")}
          items={clustersFound.map((c) => (
            <Item key={c.name} value={`cluster ${c.name}`} onSelect={() => (cordoned === undefined ? go(clusterLink(c.name)) : taint(c.name))}>
              <span className="row">
                <Dot tone={toneOfFreshness(freshness(fleet, c.name))} />
                {cordoned === undefined ? c.name : t(verb?.act === "cordon" ? "palette.cordonOf" : "palette.uncordonOf", { name: c.name })}
              </span>
            </Item>
          ))}
        />
        <Group
          heading={t("palette.ofHub")}
          items={names.all.map((n) => (
            <Item key={linkOf(n)} value={`name ${linkOf(n)}`} onSelect={() => go(verb ? whyLink({ ...n, kind: n.kind.kind, group: n.kind.group }) : linkOf(n))}>
              <span className="palette-name">{verb ? t("why.titleOf", { name: n.name }) : n.name}</span>
              <span className="faint">{[n.kind.kind, n.namespace].filter(Boolean).join(" · ")}</span>
            </Item>
          ))}
        />
        <Group
          heading={t(named(text).startsWith("name:") ? "palette.begin" : "palette.objects", { text })}
          items={found.map((o) => {
            const id = idOf(o)
            return (
              <Item key={id} value={`object ${id}`} onSelect={() => go(objectLink({ ...o, group: groupOf(o.apiVersion) }))}>
                <span className="palette-name">{o.name}</span>
                <span className="faint">{[o.kind, o.namespace, o.cluster].filter(Boolean).join(" · ")}</span>
              </Item>
            )
          })}
        />
        {!asCommand && !verb && text.length > 1 && (
          <Item value="every" onSelect={() => go(`/table?${encode({ kind: "*", q: quote(text) })}`)}>
            {t("palette.everyKind", { text })}
          </Item>
        )}
      </Command.List>
      {failed && <Failure error={failed} />}
      {names.cut.length > 0 && <p className="palette-note">{t("palette.cut", { kinds: names.cut.join(", ") })}</p>}
    </Command>
  )

  function actionItem(a: Action, close: () => void) {
    return (
      <Item
        key={a.id}
        value={`action ${a.id}`}
        onSelect={() => {
          close()
          // After the palette has returned the focus.
          requestAnimationFrame(() => a.run())
        }}
      >
        <span>
          {a.title} {actionsFound.some((b) => b !== a && b.title === a.title) && <span className="faint">{a.section}</span>}
        </span>
        {a.keys && <KeyHint keys={shownKeys(a.keys)} />}
      </Item>
    )
  }
}

const idOf = (o: Found) => `${o.cluster}/${o.apiVersion}/${o.kind}/${o.namespace}/${o.name}`
const matches = (a: Action, text: string) => `${a.title} ${a.words ?? ""}`.toLowerCase().includes(text)
const unique = (all: Action[]) => all.filter((a, i) => !a.quiet && all.findIndex((b) => b.id === a.id) === i)
const shownKeys = (keys: string) => keys.replace(/ctrl\+(\w)/, (_, key: string) => `Ctrl+${key.toUpperCase()}`)

function Group({ heading, items }: { heading: string; items: ReactNode[] }) {
  return items.length ? (
    <Command.Group heading={heading} className="palette-group">
      {items}
    </Command.Group>
  ) : null
}

function Item({ value, onSelect, children }: { value: string; onSelect: () => void; children: ReactNode }) {
  return (
    <Command.Item className="menu-item" value={value} onSelect={onSelect}>
      {children}
    </Command.Item>
  )
}

/** The keys that work now, by section. */
function Keys() {
  const all = useAllActions().filter((a, i, every) => a.keys && every.findIndex((b) => b.keys === a.keys) === i && a.possible?.() !== false)
  const sections = [...new Set(all.map((a) => a.section ?? t("palette.everywhere")))]
  return (
    <div className="keys-page">
      <header>
        <h2>{t("palette.keys")}</h2>
        <p className="muted">{t("palette.keysAbout")}</p>
      </header>
      <div className="keys-sections">
        {sections.map((section) => (
          <section key={section}>
            <h3>{section}</h3>
            <dl>
              {all
                .filter((a) => (a.section ?? t("palette.everywhere")) === section)
                .map((a) => (
                  <div key={a.id}>
                    <dt>{a.title}</dt>
                    <dd>
                      <KeyHint keys={shownKeys(a.keys!)} />
                    </dd>
                  </div>
                ))}
            </dl>
          </section>
        ))}
      </div>
    </div>
  )
}
