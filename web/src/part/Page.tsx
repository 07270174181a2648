import { type ReactNode, useEffect } from "react"
import { Link, useLocation } from "wouter"
import { useUnanswered } from "../hub/access"
import type { Answer } from "../hub/answer"
import { useActions } from "../palette/actions"
import { t } from "../text/text"
import { Button } from "./Button"
import { Empty, Failure, Notice, Skeleton } from "./Notice"

type Props = {
  title: string
  heading?: ReactNode
  about?: ReactNode
  /** Related pages, each with its address. */
  links?: [href: string, title: string][]
  actions?: ReactNode
  full?: boolean
  children?: ReactNode
}

/** A screen: heading, actions and content. full: the content scrolls by itself. */
export function Page({ title, heading, about, links = [], actions, full, children }: Props) {
  useEffect(() => {
    document.title = `${title} · Orrery`
  }, [title])
  const [, navigate] = useLocation()
  useActions(
    () => links.map(([href, text]) => ({ id: `link.${href}`, title: text, section: title, run: () => navigate(href) })),
    [title, JSON.stringify(links)],
  )
  return (
    <div className={`page ${full ? "full" : ""}`}>
      <header className="page-head">
        <div className="page-title">
          <h1>{heading ?? title}</h1>
          {about && <div className="page-about">{about}</div>}
        </div>
        {(actions || links.length > 0) && (
          <div className="page-actions">
            {links.map(([href, text]) => (
              <Link key={href} className="button" href={href}>
                {text}
              </Link>
            ))}
            {actions}
          </div>
        )}
      </header>
      <div className="page-body">
        <Unanswered />
        {children}
      </div>
    </div>
  )
}

/** Shows that a permission could not be checked, which is not a refusal: actions may be missing. */
function Unanswered() {
  const [first, ...others] = useUnanswered()
  if (!first) return null
  const again = () => [first, ...others].forEach((u) => void u.again())
  return (
    <Notice tone="unknown" title={t("common.rightsUnknown")} action={<Button onClick={again}>{t("common.retry")}</Button>}>
      <span className="selectable">{first.error.message}</span>
    </Notice>
  )
}

/** A screen whose object is loading, cannot be read, or does not exist. */
export function Absent({ title, answer, gone, children }: { title: string; answer: Answer<unknown>; gone: string; children?: ReactNode }) {
  const { error, reload } = answer
  return (
    <Page title={title}>
      {!error ? <Skeleton lines={8} /> : error.code === 404 ? <Empty title={gone}>{children}</Empty> : <Failure error={error} retry={reload} />}
    </Page>
  )
}

export function Section({ title, actions, children }: { title: string; actions?: ReactNode; children: ReactNode }) {
  return (
    <section className="section">
      <header>
        <h2>{title}</h2>
        {actions}
      </header>
      {children}
    </section>
  )
}

/** Pairs of a name and a value. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

/** A table of few rows; long lists use Grid. */
type TableProps = {
  label: string
  head: string[]
  rows: { key: string; cells: ReactNode[] }[]
  /** Called with the key of the row that gets the focus. */
  onRow?: (key: string) => void
}

export function SmallTable({ label, head, rows, onRow }: TableProps) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: users scroll it by keyboard.
    <section className="small-table" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((cell, i) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: columns keep their order.
              <th key={i} scope="col">
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key} data-row={row.key} onFocus={onRow && (() => onRow(row.key))}>
              {row.cells.map((cell, i) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: columns keep their order.
                <td key={i} data-label={head[i]}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  )
}
