import { lazy, Suspense, useEffect, useState } from "react"
import { Boundary } from "../part/Boundary"
import { Dialog } from "../part/Dialog"
import { t } from "../text/text"
import { useKeys } from "./Keys"
import { type Mode, onPalette } from "./open"

const load = () => import("./Palette")
const Palette = lazy(load)

/** Where the palette is, once somebody opened it. */
export function PaletteHost() {
  const [mode, setMode] = useState<Mode>()
  useKeys()
  useEffect(() => onPalette(setMode), [])
  // Whoever opens it types at once: it is there before it is asked for.
  useEffect(() => {
    const timer = window.setTimeout(load, 1000)
    return () => clearTimeout(timer)
  }, [])
  const close = () => setMode(undefined)
  return mode ? (
    <Boundary
      around={(what) => (
        <Dialog open title={t("layout.search")} onClose={close}>
          {what}
        </Dialog>
      )}
    >
      <Suspense fallback={null}>
        <Palette mode={mode} onClose={close} />
      </Suspense>
    </Boundary>
  ) : null
}
