package host

import (
	"bytes"
	"strings"
)

// tailSize is how many bytes at the end of a host's output are kept for messages.
const tailSize = 4096

// tail is a writer that keeps the end of its input, for messages. It is for one goroutine.
type tail struct {
	redactor redactor
	buf      []byte
	cut      bool // the beginning is missing
}

// Write adds p to the input. It never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	// Keep more bytes, as many as the longest secret has, because a divided secret would not be
	// recognized.
	if extra := len(t.buf) - tailSize - t.redactor.longest; extra > 0 {
		t.buf, t.cut = bytes.Clone(t.buf[extra:]), true
	}
	return len(p), nil
}

// String returns the end of the input, of about tailSize bytes, with secrets replaced and without
// surrounding spaces. If the beginning of the input is missing, the result starts with a complete
// line where possible.
func (t *tail) String() string {
	s := t.redactor.redact(string(t.buf))
	if t.cut {
		s = s[min(len(s), t.redactor.longest):]
		if _, lines, ok := strings.Cut(s, "\n"); ok && lines != "" {
			s = lines
		}
	}
	return strings.TrimSpace(strings.ToValidUTF8(s, "?"))
}
