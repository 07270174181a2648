package host

import (
	"bytes"
	"io"
)

// maxRest is a bound for the text that follows a marker in its line.
const maxRest = 64

// gate is a writer that holds back output before our command starts: that of shell profiles,
// PAM and sudo. The start is a line that begins with a random marker. Write never returns an
// error, so that the host is not blocked.
type gate struct {
	marker []byte
	opened func(rest string) // called with the rest of the marker's line; may be nil
	prompt []byte            // prompt of sudo; may be empty
	asked  func()            // called for each prompt

	before *tail // output that was held back
	after  io.Writer

	held []byte
	open bool
}

// Write passes on the output after the marker. Output before it goes to g.before.
func (g *gate) Write(p []byte) (int, error) {
	if g.open {
		return g.pass(p)
	}
	g.held = append(g.held, p...)
	for len(g.prompt) > 0 {
		before, rest, found := bytes.Cut(g.held, g.prompt)
		if !found || bytes.Contains(before, g.marker) {
			break
		}
		_, _ = g.before.Write(before)
		g.held = rest
		g.asked()
	}
	before, line, found := bytes.Cut(g.held, g.marker)
	rest, after, whole := bytes.Cut(line, []byte("\n"))
	switch {
	case found && (whole || len(line) > maxRest):
		_, _ = g.before.Write(before)
		g.held, g.open = nil, true
		if g.opened != nil {
			g.opened(string(rest))
		}
		_, err := g.pass(after)
		return len(p), err
	case !found:
		// The end may be the beginning of a marker.
		if extra := len(g.held) - max(len(g.marker), len(g.prompt)); extra > 0 {
			_, _ = g.before.Write(g.held[:extra])
			g.held = g.held[extra:]
		}
	}
	return len(p), nil
}

func (g *gate) pass(p []byte) (int, error) {
	if len(p) > 0 && g.after != nil {
		_, _ = g.after.Write(p)
	}
	return len(p), nil
}

// said returns the output before the marker, or all output if there was no marker.
func (g *gate) said() string {
	if !g.open {
		_, _ = g.before.Write(g.held)
		g.held = nil
	}
	return g.before.String()
}
