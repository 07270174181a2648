import type { ReactNode } from "react"
import type { Answer } from "../hub/answer"
import { t } from "../text/text"
import { useAge } from "./Age"
import { Failure, Skeleton } from "./Notice"

/** What a question is answered: it is on its way, cannot be had, or is there. What could not be asked for again never looks as if it were of now. */
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
