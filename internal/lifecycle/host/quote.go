package host

import "strings"

// Quote returns words as one line that a POSIX shell reads as exactly these words.
func Quote(words ...string) string {
	var b strings.Builder
	for i, word := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if word != "" && strings.Trim(word, plain) == "" {
			b.WriteString(word)
			continue
		}
		b.WriteByte('\'')
		b.WriteString(strings.ReplaceAll(word, `'`, `'\''`))
		b.WriteByte('\'')
	}
	return b.String()
}

// plain are the characters that mean nothing to a shell, wherever they stand. Not = and ~, which mean something
// at the beginning of a word.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:@_"
