import { lazy, Suspense, useEffect, useState } from "react"
import { useKeys } from "./Keys"
import { type Mode, onPalette } from "./open"

const Palette = lazy(() => import("./Palette"))

/** Where the palette is, once somebody opened it. */
export function PaletteHost() {
  const [mode, setMode] = useState<Mode>()
  useKeys()
  useEffect(() => onPalette(setMode), [])
  return mode ? (
    <Suspense fallback={null}>
      <Palette mode={mode} onClose={() => setMode(undefined)} />
    </Suspense>
  ) : null
}
