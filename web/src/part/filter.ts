/** Pure: whether each of the words occurs in one of the texts. */
export function hasWords(words: string, texts: (string | undefined)[]): boolean {
  const text = texts.join(" ").toLowerCase()
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word))
}
