package neutral

import (
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer writes text with its line breaks and tabs. Every other character that is not neutral
// becomes U+FFFD. A Writer cannot see which part of a line is untrusted, so callers must make
// such parts neutral before. It is safe for concurrent use.
type Writer struct {
	mu     sync.Mutex
	to     io.Writer
	filter filter
	rest   []byte // an incomplete character at the end of the last write
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w, filter: filter{allowed: "\n\t"}} }

// Unwrap returns the writer to which w writes.
func (w *Writer) Unwrap() io.Writer { return w.to }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) == 0 && plainBytes(p) == len(p) {
		if len(p) > 0 {
			w.filter.previous = rune(p[len(p)-1])
		}
		return w.to.Write(p)
	}
	text := append(w.rest, p...) //nolint:gocritic // rest is set below
	whole := len(text) - begun(text)
	w.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(w.to, strings.Map(w.filter.replace, string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// plainBytes returns how many bytes at the beginning are printable ASCII, line breaks and tabs.
func plainBytes(text []byte) int {
	for i, b := range text {
		if (b < ' ' || b >= 0x7f) && b != '\n' && b != '\t' {
			return i
		}
	}
	return len(text)
}

// begun returns the number of bytes of an incomplete character at the end of a text.
func begun(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		last := text[len(text)-n:]
		if utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}

// JSON escapes every character that is not neutral in JSON. Its value stays the same, because
// such characters occur only in strings.
func JSON(text []byte) []byte { return escape(text, unicode.MaxRune) }

// JSONForYAML is JSON for a converter from JSON to YAML. The converter refuses control
// characters, and the surrogate pairs with which JSON escapes characters beyond U+FFFF.
// Therefore the latter are not escaped.
func JSONForYAML(text []byte) []byte { return escape(text, 0xffff) }

// escape escapes the characters that are not neutral and not greater than last.
func escape(text []byte, last rune) []byte {
	var out []byte
	f := filter{allowed: "\r"}
	done := 0
	for at := 0; at < len(text); {
		if plain := plainBytes(text[at:]); plain > 0 {
			at += plain
			f.previous = rune(text[at-1])
			continue
		}
		r, size := utf8.DecodeRune(text[at:])
		if r != utf8.RuneError && f.replace(r) != r && r <= last {
			out = appendEscape(append(out, text[done:at]...), r)
			done = at + size
		}
		at += size
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

// appendEscape appends the JSON escape of a character.
func appendEscape(to []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	for _, u := range utf16.AppendRune(nil, r) {
		to = append(to, '\\', 'u', digits[u>>12&0xf], digits[u>>8&0xf], digits[u>>4&0xf], digits[u&0xf])
	}
	return to
}

// jsonWriter writes JSON. Each write must have complete characters, as those of encoders have.
type jsonWriter struct{ to io.Writer }

// NewJSONWriter returns a writer that applies JSON to each write and writes the result to w.
// Each write must have complete characters.
func NewJSONWriter(w io.Writer) io.Writer { return jsonWriter{w} }

// Write implements io.Writer.
func (w jsonWriter) Write(p []byte) (int, error) {
	if _, err := w.to.Write(JSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
