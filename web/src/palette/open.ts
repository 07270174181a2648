/**
 * The ways to open the palette: to find something, for a command of k9s, with a verb such as
 * "why" before a name, or to show the keys.
 */
export type Mode = "find" | "command" | "why" | "cordon" | "uncordon" | "keys"

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
