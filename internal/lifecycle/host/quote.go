package host

import "strings"

// Quote returns a text that a POSIX shell splits into exactly these words, without expanding
// variables or patterns in them.
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

// plain are the characters that have no meaning for a shell, at any position of a word. = and ~ are
// missing, since they have a meaning at the beginning of a word.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:@_"
