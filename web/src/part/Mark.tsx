import type { ReactNode } from "react"

/** The meaning of a colour. Each also has its own shape, for users who do not see colours. */
export type Tone = "good" | "warn" | "bad" | "unknown" | "plain"

/** A state as a symbol and a word. */
export function Mark({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className={`mark ${tone}`}>
      <Dot tone={tone} />
      {children}
    </span>
  )
}

export function Dot({ tone }: { tone: Tone }) {
  return (
    <svg className={`dot ${tone}`} viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">
      {tone === "good" && <circle cx="5" cy="5" r="3.5" fill="currentColor" />}
      {tone === "warn" && <path d="M5 1l4.4 8H.6z" fill="currentColor" />}
      {tone === "bad" && <path d="M1.2 1.2h7.6v7.6H1.2z" fill="currentColor" />}
      {tone === "unknown" && <circle cx="5" cy="5" r="3.2" fill="none" stroke="currentColor" strokeWidth="1.5" strokeDasharray="2 1.4" />}
      {tone === "plain" && <circle cx="5" cy="5" r="3" fill="none" stroke="currentColor" strokeWidth="1.5" />}
    </svg>
  )
}

/** A short word in a box: a version, a count, a role. */
export function Badge({ tone = "plain", children }: { tone?: Tone; children: ReactNode }) {
  return <span className={`badge ${tone}`}>{children}</span>
}

/** Pure: the tone of a word that Kubernetes uses for a state. */
export function toneOf(word: string): Tone {
  if (/^(Running|Ready|Active|Bound|Available|Succeeded|Completed?|Healthy|Synced|True|Approved|Issued|Normal|Deployed|Established)$/i.test(word)) return "good"
  if (/^(Pending|ContainerCreating|Init:.*|Progressing|Terminating|Waiting|Behind|Released|Warning|Suspended|SchedulingDisabled|Ready,.*)$/i.test(word))
    return "warn"
  if (
    /^(Failed|Error|CrashLoopBackOff|ImagePullBackOff|ErrImagePull|Err.*|.*BackOff|OOMKilled|Evicted|NotReady.*|Lost|False|Degraded|Invalid.*|.*Error)$/i.test(
      word,
    )
  )
    return "bad"
  if (/^(Unknown|Unreachable)$/i.test(word)) return "unknown"
  return "plain"
}
