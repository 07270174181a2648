import { useEffect, useState } from "react"
import { Boundary } from "../part/Boundary"
import { Dialog } from "../part/Dialog"
import { later } from "../part/later"
import { t } from "../text/text"
import { useKeys } from "./Keys"
import { type Mode, onPalette } from "./open"

const Palette = later(() => import("./Palette"), 0)

/** The palette, after it was opened. */
export function PaletteHost() {
  const [mode, setMode] = useState<Mode>()
  useKeys()
  useEffect(() => onPalette(setMode), [])
  // The code is loaded beforehand, because users type as soon as they open the palette.
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
