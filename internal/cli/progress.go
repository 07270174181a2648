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

// progress says what is being waited for: on a terminal one line that is rewritten,
// elsewhere a line whenever another step begins.
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

// step says what is being waited for. Messages of one step differ after a colon.
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
		_ = say(p.w, "[%3s] %s\n", elapsed, step) // progress is a courtesy
		p.last = step
	}
}

// done ends the line.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K") //nolint:errcheck // progress is a courtesy
	}
	p.last = ""
}
