// What a program wrote to its log, as text that only ever is text.

/** longest is how much of one line is shown: browsers lay out longer ones for seconds. */
export const longest = 10_000

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const escapes = /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]/g
// Control characters but the tab, and those that turn the direction of text around.
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const controls = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g

/** clean takes escape sequences and control characters out of a line; what a carriage return would have overwritten is gone as well. */
export function clean(line: string): string {
  line = line.endsWith("\r") ? line.slice(0, -1) : line
  const plain = line.replace(escapes, "")
  const last = plain.slice(plain.lastIndexOf("\r") + 1).replace(controls, "")
  return last.length > longest ? `${last.slice(0, longest)}…` : last
}
