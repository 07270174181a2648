package host

import (
	"bytes"
	"io"
)

// maxRest is more than what may follow a marker in its line.
const maxRest = 64

// gate holds back what a host says before our command starts: the words of shell profiles, of PAM and of sudo. The
// start is a line that begins with a marker that nobody else knows. A gate never fails, so that no host is held up.
type gate struct {
	marker []byte
	opened func(rest string) // called with the rest of the marker's line; may be nil
	prompt []byte            // what sudo asks with; may be empty
	asked  func()            // called for each prompt

	before *tail // what was held back
	after  io.Writer

	held []byte
	open bool
}

// Write passes on what follows the marker.
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

// said is what came before the marker, or all if it never came.
func (g *gate) said() string {
	if !g.open {
		_, _ = g.before.Write(g.held)
		g.held = nil
	}
	return g.before.String()
}
