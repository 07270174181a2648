package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"orrery.dev/orrery/internal/neutral"
)

// progress shows what a command waits for: on a terminal in one line that is rewritten,
// elsewhere as a new line for each step.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	width    int
	start    time.Time
	last     string
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: raw(w), start: time.Now()}
	if f, ok := p.w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal, p.width = true, 80
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			p.width = width
		}
	}
	return p
}

// step shows a message. The text before a colon names the step; a change after it is not a new
// step.
func (p *progress) step(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed := time.Since(p.start).Round(time.Second)
	message = neutral.Line(message)
	if p.terminal {
		line := cutLine(fmt.Sprintf("[%3s] %s", elapsed, message), p.width-1)
		fmt.Fprintf(p.w, "\r%s\x1b[K", line) //nolint:errcheck // progress is a courtesy
		p.last = line
		return
	}
	step, _, _ := strings.Cut(message, ":")
	if step != p.last {
		_ = say(p.w, "[%3s] %s\n", elapsed, step) // errors are ignored: the progress is optional
		p.last = step
	}
}

// done clears the line.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K") //nolint:errcheck // progress is a courtesy
	}
	p.last = ""
}
