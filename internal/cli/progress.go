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

// progress displays what a command waits for: on a terminal in one line that is rewritten,
// elsewhere in one line for each step. It is safe for concurrent use and ignores errors of the
// output.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	width    int
	start    time.Time
	last     string
}

// newProgress returns a progress on the stream w, whose time starts now. It writes control
// characters for the terminal, so it uses the stream below the neutral.Writer w.
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

// step displays a message after the time since newProgress. If the output is not a terminal, it
// prints only the text before the first colon, which names the step. It prints nothing if it
// printed the same step last.
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

// done removes the line from a terminal. It may be called several times, and step may be called
// afterwards.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K") //nolint:errcheck // progress is a courtesy
	}
	p.last = ""
}
