import { useEffect, useState } from "react"
import { Boundary } from "../part/Boundary"
import { Dialog } from "../part/Dialog"
import { later } from "../part/later"
import { t } from "../text/text"
import { useKeys } from "./Keys"
import { type Mode, onPalette } from "./open"

const Palette = later(() => import("./Palette"), 0)

/** Where the palette is, once somebody opened it. */
export function PaletteHost() {
  const [mode, setMode] = useState<Mode>()
  useKeys()
  useEffect(() => onPalette(setMode), [])
  // Whoever opens it types at once: it is there before it is asked for.
  useEffect(() => {
    const timer = window.setTimeout(() => void Palette.load().catch(() => {}), 1000)
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
      <Palette mode={mode} onClose={close} />
    </Boundary>
  ) : null
}
