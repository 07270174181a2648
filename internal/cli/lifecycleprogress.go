package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
)

// maxLiveHosts is the maximum number of hosts that the progress on a terminal shows at the same
// time, 8.
const maxLiveHosts = 8

// runProgress displays the progress of a run on the hosts of a cluster. On a terminal it rewrites a
// few lines. Elsewhere it prints a line when a host begins or ends a stage. If verbose, it does
// neither, and prints a line for each change of a step. It is safe for concurrent use and ignores
// errors of the output.
type runProgress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	verbose  bool
	width    int
	start    time.Time
	drawn    int // number of lines of the progress on the terminal

	hosts map[string]lifecyclev1alpha1.HostRun // the last state that was shown
	steps map[string]string                    // the present step of each host
}

// newRunProgress returns a runProgress on the stream w, whose time starts now. It writes control
// characters for the terminal, so it uses the stream below the neutral.Writer w.
func newRunProgress(w io.Writer, verbose bool) *runProgress {
	p := &runProgress{
		w: raw(w), verbose: verbose, width: 80, start: time.Now(),
		hosts: map[string]lifecyclev1alpha1.HostRun{}, steps: map[string]string{},
	}
	if f, ok := p.w.(*os.File); ok && !verbose && term.IsTerminal(int(f.Fd())) {
		p.terminal = true
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			p.width = width
		}
	}
	return p
}

// step records that a step has changed its state, as the present step of its host, and prints it if
// verbose. The engine's environment calls it for each change. Steps without a host are ignored.
func (p *runProgress) step(r lifecyclev1alpha1.StepRecord) {
	if r.Host == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[r.Host] = r.ID
	if p.verbose {
		p.linef("%s %s %s%s", r.Host, r.ID, r.State, after(": ", r.Message))
	}
}

// record displays the state of the run. The engine's environment calls it whenever it stores that
// state. If the run does not run any more, it removes the lines of the progress from the terminal.
func (p *runProgress) record(op *lifecyclev1alpha1.Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.terminal && op.Status.Phase == lifecyclev1alpha1.PhaseRunning:
		p.draw(op)
	case p.terminal:
		p.erase()
	case !p.verbose:
		p.transitions(op)
	}
}

// transitions prints a line for each host that has begun or ended a stage since the last call. p.mu
// must be held.
func (p *runProgress) transitions(op *lifecyclev1alpha1.Operation) {
	for _, h := range op.Status.Hosts {
		last := p.hosts[h.Name]
		p.hosts[h.Name] = h
		running := h.State == lifecyclev1alpha1.StepRunning
		if last.Stage == h.Stage && last.State == h.State {
			continue
		}
		switch was := last.State == lifecyclev1alpha1.StepRunning; {
		case h.State == lifecyclev1alpha1.StepFailed:
			p.linef("%s %s failed: %s", h.Name, h.Stage, h.Message)
		case was && last.Stage != h.Stage, was && !running && op.Status.Phase != lifecyclev1alpha1.PhasePaused:
			p.linef("%s %s done", h.Name, last.Stage)
		}
		if running {
			p.linef("%s %s begins", h.Name, h.Stage)
		}
	}
}

// linef prints a formatted message after the time since the start of the run. p.mu must be held.
func (p *runProgress) linef(format string, args ...any) {
	elapsed := time.Since(p.start).Round(time.Second)
	text := neutral.Indented(fmt.Sprintf(format, args...))
	_ = say(p.w, "[%3s] %s\n", elapsed, text) // errors are ignored: the progress is optional
}

// draw replaces the lines of the progress on the terminal by the state of op. One line is about the
// run, and one about each host that works or has failed. Failed hosts are first. At most
// maxLiveHosts are shown. p.mu must be held.
func (p *runProgress) draw(op *lifecyclev1alpha1.Operation) {
	lines := []string{p.summary(&op.Status)}
	busy := slices.DeleteFunc(slices.Clone(op.Status.Hosts), func(h lifecyclev1alpha1.HostRun) bool {
		return h.State != lifecyclev1alpha1.StepRunning && h.State != lifecyclev1alpha1.StepFailed
	})
	left := func(h lifecyclev1alpha1.HostRun) int32 { return h.Total - h.Done }
	slices.SortStableFunc(busy, func(a, b lifecyclev1alpha1.HostRun) int {
		// The names of the states sort in the right order: Failed before Running. Next is the
		// host with the most remaining steps, because the run waits for it.
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(left(b), left(a)))
	})
	for i, h := range busy {
		if i == maxLiveHosts {
			lines = append(lines, fmt.Sprintf("  and %d more hosts", len(busy)-i))
			break
		}
		at := h.Stage + after(" ", p.steps[h.Name])
		if h.State == lifecyclev1alpha1.StepFailed {
			at = h.Stage + " failed: " + h.Message
		}
		lines = append(lines, "  "+h.Name+count(" ", h.Done, h.Total)+" "+at)
	}
	p.erase()
	for _, line := range lines {
		fmt.Fprintf(p.w, "%s\r\n", cutLine(line, p.width-1)) //nolint:errcheck // progress is a courtesy
	}
	p.drawn = len(lines)
}

// summary returns the line about the whole run: the time since the start, its finished and all
// steps, and the estimated remaining time.
func (p *runProgress) summary(s *lifecyclev1alpha1.OperationStatus) string {
	line := fmt.Sprintf("[%3s]", time.Since(p.start).Round(time.Second)) + count(" ", s.StepsDone, s.StepsTotal) + " steps"
	if s.StepsTotal == 0 {
		line = fmt.Sprintf("[%3s] asking the hosts", time.Since(p.start).Round(time.Second))
	}
	if s.Estimate != nil {
		if left := time.Until(s.Estimate.Time).Round(time.Second); left > 0 {
			line += fmt.Sprintf(", about %s left", left)
		}
	}
	return line
}

// erase removes the lines of the progress from the terminal. p.mu must be held.
func (p *runProgress) erase() {
	if p.drawn > 0 {
		fmt.Fprintf(p.w, "\x1b[%dA\r\x1b[J", p.drawn) //nolint:errcheck // progress is a courtesy
	}
	p.drawn = 0
}

// count returns before and DONE/TOTAL, such as " 3/12". It is "" if total is 0, which means that
// the number of steps is unknown.
func count(before string, done, total int32) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%s%d/%d", before, done, total)
}

// after returns before followed by text; "" if text is empty.
func after(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// cutLine returns a text as one line of at most width characters, with control characters replaced.
// Spaces and line breaks in a row become one space.
func cutLine(text string, width int) string {
	text = neutral.Line(strings.Join(strings.Fields(text), " "))
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}
