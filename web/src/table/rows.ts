/**
 * Pure: the rows of a list that are on screen, for any length: browsers limit the height of an
 * element.
 */

/** Firefox supports about 17.9 million pixels, Chromium 33.5. */
const highest = 16_000_000

export type Frame = { total: number; row: number; view: number }

/** The height of the scrolled element. */
export const heightOf = (f: Frame) => Math.min(f.total * f.row, highest)

/** The number of pixels of rows per pixel of the scroll bar. */
export function ratioOf(f: Frame): number {
  const scrolled = heightOf(f) - f.view
  return scrolled > 0 ? Math.max(1, (f.total * f.row - f.view) / scrolled) : 1
}

/** The rows to render at position `top` of the rows: those on screen, and a few around them. */
export function visible(f: Frame, top: number, around = 4): { first: number; count: number } {
  const first = Math.max(0, Math.min(f.total - 1, Math.floor(top / f.row)) - around)
  const last = Math.min(f.total, Math.ceil((top + f.view) / f.row) + around)
  return { first: f.total ? first : 0, count: Math.max(0, last - first) }
}

/**
 * The window to request: in steps, so that scrolling by a pixel seldom requests another one, and
 * within the API's limit.
 */
export function asked(first: number, count: number, step = 20, most = 200): { offset: number; limit: number } {
  const offset = Math.max(0, Math.floor((first - step) / step) * step)
  return { offset, limit: count + 2 * step <= 120 ? 120 : most }
}

/** The position that shows a row; undefined: the row is on screen. */
export function reveal(f: Frame, top: number, index: number): number | undefined {
  const from = index * f.row
  if (from < top) return from
  if (from + f.row > top + f.view) return from + f.row - f.view
  return undefined
}

/** The index of the cursor after a key; undefined: not a key that moves. */
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
