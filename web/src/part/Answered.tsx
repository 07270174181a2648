import type { ReactNode } from "react"
import type { Answer } from "../hub/answer"
import { t } from "../text/text"
import { useAge } from "./Age"
import { Failure, Skeleton } from "./Notice"

/**
 * The state of an answer: loading, failed, or its data. Data that could not be refreshed is shown
 * with its age.
 */
export function Answered<T>({ answer, lines = 6, children }: { answer: Answer<T>; lines?: number; children?: (data: T) => ReactNode }) {
  const { data, error, since, reload } = answer
  const age = useAge(since)
  return (
    <>
      {error && (
        <Failure error={error} retry={reload}>
          {data !== undefined && <div>{t("common.staleFor", { age })}</div>}
        </Failure>
      )}
      {data === undefined ? !error && <Skeleton lines={lines} /> : children?.(data)}
    </>
  )
}
