import { Age } from "../part/Age"
import { Mark, type Tone } from "../part/Mark"
import { t } from "../text/text"
import type { Health } from "./cluster"

export type AnyHealth = Health | "unknown"

/** An unreachable cluster has an unknown state: grey, not the tone of its last state. */
export const tones: Record<AnyHealth, Tone> = {
  ready: "good",
  warning: "warn",
  unready: "bad",
  unreachable: "unknown",
  unknown: "unknown",
  joining: "plain",
  building: "plain",
  leaving: "plain",
}

export function HealthMark({ health, since }: { health: AnyHealth; since?: string }) {
  return (
    <Mark tone={tones[health]}>
      {t(`cluster.${health}`)}
      {since && health !== "ready" && (
        <span className="muted">
          {" "}
          <Age since={since} />
        </span>
      )}
    </Mark>
  )
}
