import { useSearchParams } from "wouter"

/**
 * The parameters of the address, and a function that sets one, or removes it if the value is
 * empty.
 */
export function useAddress(): [URLSearchParams, (name: string, value: string) => void] {
  const [params, setParams] = useSearchParams()
  const set = (name: string, value: string) =>
    setParams(
      (now) => {
        if (value) now.set(name, value)
        else now.delete(name)
        return now
      },
      { replace: true },
    )
  return [params, set]
}
