import { type ComponentType, useEffect, useState } from "react"
import { Skeleton } from "./Notice"

export type Late<P extends object> = ComponentType<P> & { load: () => Promise<void> }

/**
 * A component whose code is loaded when it is first shown, or by load. Until then it shows
 * placeholder lines; if the code cannot be loaded, the Boundary around it shows the error.
 * React's lazy would show the code 300 ms after such lines at the earliest.
 */
export function later<P extends object>(code: () => Promise<{ default: ComponentType<P> }>, lines = 8, place = ""): Late<P> {
  let Here: ComponentType<P> | undefined
  const load = async () => {
    Here ??= (await code()).default
  }
  // biome-ignore lint/correctness/noComponentHookFactories: called once per component, like lazy.
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
