/** Pure: which rows of a list are on screen, also of lists that are higher than a browser lets anything be. */

/** Firefox lays nothing out beyond about 17.9 million pixels, Chromium beyond 33.5. */
const highest = 16_000_000

export type Frame = { total: number; row: number; view: number }

/** How high the scrolled element is. */
export const heightOf = (f: Frame) => Math.min(f.total * f.row, highest)

/** How many pixels of rows one pixel of the scroll bar stands for. */
export function ratioOf(f: Frame): number {
  const scrolled = heightOf(f) - f.view
  return scrolled > 0 ? Math.max(1, (f.total * f.row - f.view) / scrolled) : 1
}

/** The rows to draw when the rows' own position is `top`: those to be seen, and a few around them. */
export function visible(f: Frame, top: number, around = 4): { first: number; count: number } {
  const first = Math.max(0, Math.min(f.total - 1, Math.floor(top / f.row)) - around)
  const last = Math.min(f.total, Math.ceil((top + f.view) / f.row) + around)
  return { first: f.total ? first : 0, count: Math.max(0, last - first) }
}

/** The window to ask for: steps of it, so that not each pixel asks anew, and at most what may be asked. */
export function asked(first: number, count: number, step = 20, most = 200): { offset: number; limit: number } {
  const offset = Math.max(0, Math.floor((first - step) / step) * step)
  return { offset, limit: count + 2 * step <= 120 ? 120 : most }
}

/** Where to scroll to have a row on screen; undefined if it is there. */
export function reveal(f: Frame, top: number, index: number): number | undefined {
  const from = index * f.row
  if (from < top) return from
  if (from + f.row > top + f.view) return from + f.row - f.view
  return undefined
}

/** Where the cursor goes by a key; undefined if the key is none that moves. */
export function moved(key: string, at: number, total: number, page: number): number | undefined {
  const to = (index: number) => (total ? Math.max(0, Math.min(total - 1, index)) : -1)
  switch (key) {
    case "j":
    case "ArrowDown":
      return to(at + 1)
    case "k":
    case "ArrowUp":
      return to(at - 1)
    case "PageDown":
    case "ctrl+f":
      return to(at + page)
    case "PageUp":
    case "ctrl+b":
      return to(at - page)
    case "Home":
    case "g g":
      return to(0)
    case "End":
    case "G":
      return to(total - 1)
    default:
      return undefined
  }
}
