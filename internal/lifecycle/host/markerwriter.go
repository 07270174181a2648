package host

import (
	"bytes"
	"io"
)

// maxRest is the maximum number of bytes of the marker's line that markerWriter waits for, after
// the marker.
const maxRest = 64

// markerWriter is a writer for an output of a session. It separates the output of the command from
// that before it, which shell profiles, PAM and sudo write. The script that starts the command
// first writes a line that begins with a random marker. The output after this line goes to after.
//
// Write never returns an error, so that the host is not blocked.
type markerWriter struct {
	marker []byte
	opened func(rest string) // called with the rest of the marker's line; may be nil
	prompt []byte            // prompt of sudo; may be empty
	asked  func()            // called for each prompt

	before *tail // output that was held back
	after  io.Writer

	held []byte
	open bool
}

// Write passes the output after the marker's line on to w.after. Output before the marker goes to
// w.before, without the prompts of sudo. Write calls w.asked for each prompt.
func (w *markerWriter) Write(p []byte) (int, error) {
	if w.open {
		return w.pass(p)
	}
	w.held = append(w.held, p...)
	for len(w.prompt) > 0 {
		before, rest, found := bytes.Cut(w.held, w.prompt)
		if !found || bytes.Contains(before, w.marker) {
			break
		}
		_, _ = w.before.Write(before)
		w.held = rest
		w.asked()
	}
	before, line, found := bytes.Cut(w.held, w.marker)
	rest, after, whole := bytes.Cut(line, []byte("\n"))
	switch {
	case found && (whole || len(line) > maxRest):
		_, _ = w.before.Write(before)
		w.held, w.open = nil, true
		if w.opened != nil {
			w.opened(string(rest))
		}
		_, err := w.pass(after)
		return len(p), err
	case !found:
		// Hold back the end of the output, which may be the beginning of the marker or of a prompt.
		if extra := len(w.held) - max(len(w.marker), len(w.prompt)); extra > 0 {
			_, _ = w.before.Write(w.held[:extra])
			w.held = w.held[extra:]
		}
	}
	return len(p), nil
}

// pass writes p, which is output of the command, to w.after. It drops p if w.after is nil.
func (w *markerWriter) pass(p []byte) (int, error) {
	if len(p) > 0 && w.after != nil {
		_, _ = w.after.Write(p)
	}
	return len(p), nil
}

// said returns the end of the output before the marker, or of all output if the marker never came.
// It may be called only after the last Write.
func (w *markerWriter) said() string {
	if !w.open {
		_, _ = w.before.Write(w.held)
		w.held = nil
	}
	return w.before.String()
}
