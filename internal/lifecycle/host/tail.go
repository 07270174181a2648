package host

import (
	"bytes"
	"strings"
)

// tailSize is how much of a host's output is kept for messages, in bytes.
const tailSize = 4096

// tail is a writer that keeps the end of its input.
type tail struct {
	redactor redactor
	buf      []byte
	cut      bool // the beginning is missing
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	// Keep more, as long as the longest secret, because a divided secret would not be recognized.
	if extra := len(t.buf) - tailSize - t.redactor.longest; extra > 0 {
		t.buf, t.cut = bytes.Clone(t.buf[extra:]), true
	}
	return len(p), nil
}

// String returns the end of the input, without secrets.
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
