import { type ComponentType, useEffect, useState } from "react"
import { Skeleton } from "./Notice"

export type Late<P extends object> = ComponentType<P> & { load: () => Promise<void> }

/**
 * A component whose code comes when it is first shown, or load is called; until then there are lines in its place, and if it does not
 * come the Boundary around it says so. React's lazy would show the code 300 ms after such lines at the earliest.
 */
export function later<P extends object>(code: () => Promise<{ default: ComponentType<P> }>, lines = 8, place = ""): Late<P> {
  let Here: ComponentType<P> | undefined
  const load = async () => {
    Here ??= (await code()).default
  }
  // biome-ignore lint/correctness/noComponentHookFactories: it is called where modules are loaded, once for each component, as lazy is.
  const Later = (props: P) => {
    const [state, setState] = useState<{ error?: unknown }>()
    const Code = Here
    useEffect(() => {
      if (!Code)
        load().then(
          () => setState({}),
          (error) => setState({ error }),
        )
    }, [])
    if (Code) return <Code {...props} />
    if (state?.error) throw state.error
    return lines ? (
      <div className={place || undefined}>
        <Skeleton lines={lines} />
      </div>
    ) : null
  }
  return Object.assign(Later, { load })
}
