package host

import (
	"bytes"
	"strings"
)

// tailSize is how much of what a host says is kept for messages.
const tailSize = 4096

// tail keeps the end of what is written to it.
type tail struct {
	redactor redactor
	buf      []byte
	cut      bool // something is missing at the beginning
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	// As much more is kept as a secret is long: one that the cut divides would not be recognised.
	if extra := len(t.buf) - tailSize - t.redactor.longest; extra > 0 {
		t.buf, t.cut = bytes.Clone(t.buf[extra:]), true
	}
	return len(p), nil
}

// String is the end of what was written, without secrets.
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
