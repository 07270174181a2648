import type { Tone } from "./Mark"

/** The used share of something, from 0 to 1. */
export function Meter({ label, value, text, tone }: { label: string; value: number; text: string; tone?: Tone }) {
  const part = Math.max(0, Math.min(1, value || 0))
  return (
    <div className="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(part * 100)} aria-valuetext={text}>
      <span className="meter-label">{label}</span>
      <span className="meter-bar">
        <span className={`meter-fill ${tone ?? (part > 0.9 ? "bad" : part > 0.75 ? "warn" : "plain")}`} style={{ width: `${part * 100}%` }} />
      </span>
      <span className="meter-text">{text}</span>
    </div>
  )
}
