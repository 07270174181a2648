import { useCallback, useEffect, useState } from "react"
import { get, type Query, StatusError } from "./client"

export type Answer<T> = { data?: T; error?: StatusError; loading: boolean; since: number; reload: () => void }

/**
 * The current answer to a question. Data of another question (key) is never returned; data of the
 * same one stays while it is asked again.
 */
export function useAnswer<T>(ask: ((signal: AbortSignal) => Promise<T>) | undefined, key: string, everyMs = 0): Answer<T> {
  const [round, setRound] = useState(0)
  const [state, setState] = useState<{ key: string; data?: T; error?: StatusError; loading: boolean; since: number }>({
    key: "",
    loading: true,
    since: 0,
  })
  const reload = useCallback(() => setRound((n) => n + 1), [])
  // biome-ignore lint/correctness/useExhaustiveDependencies: key identifies the question.
  useEffect(() => {
    if (!ask) return
    const abort = new AbortController()
    setState((old) => (old.key === key ? { ...old, loading: true } : { key, loading: true, since: 0 }))
    let timer = 0
    // A hidden page does not ask; it asks when it becomes visible.
    const again = () => {
      if (document.visibilityState === "visible") reload()
      else document.addEventListener("visibilitychange", reload, { once: true, signal: abort.signal })
    }
    ask(abort.signal)
      .then((data) => abort.signal.aborted || setState({ key, data, loading: false, since: Date.now() }))
      .catch((e) => {
        if (abort.signal.aborted) return
        const error = e instanceof StatusError ? e : new StatusError({ code: 0, reason: "Failed", message: String(e?.message ?? e) })
        // A refusal removes the data that was shown, as in windows.
        setState((old) => ({ ...old, key, data: error.refused ? undefined : old.data, error, loading: false }))
      })
      .finally(() => {
        if (everyMs && !abort.signal.aborted) timer = window.setTimeout(again, everyMs)
      })
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [key, round, everyMs, !ask])
  const fresh = state.key === key
  return {
    data: fresh ? state.data : undefined,
    error: fresh ? state.error : undefined,
    loading: !fresh || state.loading,
    since: state.since,
    reload,
  }
}

/** A value after it did not change for pauseMs: for questions that follow what the user types. */
export function useSettled<T>(value: T, pauseMs: number): T {
  const [settled, setSettled] = useState(value)
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), pauseMs)
    return () => clearTimeout(timer)
  }, [value, pauseMs])
  return settled
}

/** useAnswer of a GET. Without a path nothing is requested. */
export function useGet<T>(path: string | undefined, query?: Query, everyMs = 0): Answer<T> {
  return useAnswer<T>(path === undefined ? undefined : (signal) => get<T>(path, query, signal), JSON.stringify([path, query]), everyMs)
}
