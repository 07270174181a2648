import { type ReactNode, useEffect, useState } from "react"
import { StatusError } from "../hub/client"
import { t } from "../text/text"
import { Button } from "./Button"
import { Icon } from "./Icon"
import type { Tone } from "./Mark"

/** A message about the content below it. */
export function Notice({ tone = "plain", title, children, action }: { tone?: Tone; title?: string; children?: ReactNode; action?: ReactNode }) {
  return (
    <div className={`notice ${tone}`} role={tone === "bad" ? "alert" : "status"}>
      <Icon name={tone === "plain" || tone === "good" ? "info" : tone === "unknown" ? "clock" : "warning"} />
      <div className="notice-text">
        {title && <strong>{title}</strong>}
        {children && <div>{children}</div>}
      </div>
      {action}
    </div>
  )
}

/**
 * An error of the API. A refusal, an unreachable or failing server, and other errors look
 * different.
 */
export function Failure({ error, retry, children }: { error: Error; retry?: () => void; children?: ReactNode }) {
  const status = error instanceof StatusError ? error : undefined
  const unknown = status && (status.code === 0 || status.code >= 500)
  const title = status?.refused ? t("common.refused") : status?.code === 0 ? t("common.unreachable") : unknown ? t("common.serverFailed") : t("common.failed")
  const tone = status?.refused ? "warn" : unknown ? "unknown" : "bad"
  return (
    <Notice tone={tone} title={title} action={retry && <Button onClick={retry}>{t("common.retry")}</Button>}>
      <span className="selectable">{error.message}</span>
      {children}
    </Notice>
  )
}

/** Shown when it is certain that there are no items. */
export function Empty({ title, children }: { title?: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title ?? t("common.empty")}</p>
      {children && <div className="empty-text">{children}</div>}
    </div>
  )
}

const longMs = 10_000

/** A placeholder in the size of the content. After longMs it says that the wait is long. */
export function Skeleton({ lines = 1 }: { lines?: number }) {
  const [long, setLong] = useState(false)
  useEffect(() => {
    const timer = window.setTimeout(() => setLong(true), longMs)
    return () => clearTimeout(timer)
  }, [])
  if (long) {
    return (
      <div className="skeleton">
        <Notice tone="unknown" title={t("common.long")} action={<Button onClick={() => location.reload()}>{t("common.reload")}</Button>} />
      </div>
    )
  }
  return (
    <span className="skeleton" role="status" aria-label={t("common.loading")}>
      {Array.from({ length: lines }, (_, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: lines differ only by number.
        <span key={i} className="skeleton-line" style={{ width: `${92 - ((i * 17) % 40)}%` }} />
      ))}
    </span>
  )
}
