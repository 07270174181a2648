package neutral

import (
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer passes text on to another writer. It keeps line breaks and tabs. Other control characters,
// and characters that are invisible or change the direction of text, become U+FFFD. It cannot
// distinguish untrusted parts of a line, so callers must pass such parts through Line before. It is
// safe for concurrent use.
type Writer struct {
	mu     sync.Mutex
	to     io.Writer
	filter filter
	rest   []byte // an incomplete character at the end of the last write
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w, filter: filter{allowed: "\n\t"}} }

// Unwrap returns the writer that was given to NewWriter.
func (w *Writer) Unwrap() io.Writer { return w.to }

// Write implements io.Writer. An incomplete UTF-8 character at the end of p is kept until the next
// Write, and lost without one. After an error, it is unknown how much was written.
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

// plainBytes returns the number of bytes at the beginning of text that are printable ASCII, line
// breaks or tabs.
func plainBytes(text []byte) int {
	for i, b := range text {
		if (b < ' ' || b >= 0x7f) && b != '\n' && b != '\t' {
			return i
		}
	}
	return len(text)
}

// begun returns the number of bytes of an incomplete UTF-8 character at the end of a text; 0 if the
// last character is complete.
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

// JSON returns JSON in which control characters, and characters that are invisible or change the
// direction of text, are escaped. Its value stays the same, because such characters occur only in
// strings. If there is nothing to escape, the result is text itself.
func JSON(text []byte) []byte { return escape(text, unicode.MaxRune) }

// JSONForYAML returns JSON as the function JSON does, but leaves characters beyond U+FFFF as they
// are. It is for a converter to YAML, which refuses control characters. The converter also refuses
// the pairs of escapes that JSON has for characters beyond U+FFFF.
func JSONForYAML(text []byte) []byte { return escape(text, 0xffff) }

// escape returns JSON in which characters that are not neutral (see filter.replace) are escaped, up
// to the character last. Invalid UTF-8 stays as it is. If there is nothing to escape, the result is
// text itself.
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

// appendEscape appends the JSON escape of r, such as \u202e, to a text. For a character beyond
// U+FFFF, that is a surrogate pair.
func appendEscape(to []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	for _, u := range utf16.AppendRune(nil, r) {
		to = append(to, '\\', 'u', digits[u>>12&0xf], digits[u>>8&0xf], digits[u>>4&0xf], digits[u&0xf])
	}
	return to
}

// jsonWriter passes JSON on to another writer, after the function JSON has escaped characters in
// it. NewJSONWriter returns it.
type jsonWriter struct{ to io.Writer }

// NewJSONWriter returns a writer to w that passes each write through the function JSON, so that its
// output cannot control a terminal. Each write must end with a complete character, as those of
// encoders do.
func NewJSONWriter(w io.Writer) io.Writer { return jsonWriter{w} }

// Write implements io.Writer. p must not end within a character.
func (w jsonWriter) Write(p []byte) (int, error) {
	if _, err := w.to.Write(JSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
