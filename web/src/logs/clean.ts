// Lines of a program's log as plain text, without control sequences.

/**
 * longest is the most characters shown of a line: the layout of longer lines takes browsers
 * seconds.
 */
export const longest = 10_000

// biome-ignore lint/suspicious/noControlCharactersInRegex: it matches control characters
const escapes = /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]/g
// Control characters except the tab, and characters that change the direction of text.
// biome-ignore lint/suspicious/noControlCharactersInRegex: it matches control characters
const controls = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g

/**
 * clean removes escape sequences and control characters from a line. Text before a carriage
 * return is removed as well: a terminal would overwrite it.
 */
export function clean(line: string): string {
  line = line.endsWith("\r") ? line.slice(0, -1) : line
  const plain = line.replace(escapes, "")
  const last = plain.slice(plain.lastIndexOf("\r") + 1).replace(controls, "")
  return last.length > longest ? `${last.slice(0, longest)}…` : last
}
