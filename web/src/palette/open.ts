/** Opens the palette from anywhere: to find something, for a command of k9s, or to show the keys. */
export type Mode = "find" | "command" | "keys"

let listener: (mode: Mode) => void = () => {}

export function onPalette(f: (mode: Mode) => void): () => void {
  listener = f
  return () => {
    listener = () => {}
  }
}

export function openPalette(mode: Mode): void {
  listener(mode)
}
