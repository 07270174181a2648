package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// script is a plan.Script.
type script struct{ *plan.Script }

// scriptTimeout is that of a script which names none.
const scriptTimeout = 10 * time.Minute

// What a script did cannot be seen; it is run when it changes.
func (c script) observe(context.Context, *session, *record) (string, error) { return "", nil }

func (c script) capture(context.Context, *session, *record) error { return nil }

func (c script) apply(ctx context.Context, s *session, _ *record) error { return c.run(ctx, s, c.Run) }

func (c script) revert(ctx context.Context, s *session, _ *record) error {
	if c.Undo == "" {
		return nil
	}
	return c.run(ctx, s, c.Undo)
}

func (c script) run(ctx context.Context, s *session, text string) error {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = scriptTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("script did not end within %s", timeout))
	defer cancel()
	_, err := s.System.Run(ctx, []string{shell(text), "-s"}, text)
	if failed, ok := errors.AsType[*programError](err); ok {
		return &scriptError{failed}
	}
	return err
}

// scriptError is a script that failed. What it said is the user's, and no part of the message.
type scriptError struct{ *programError }

func (e *scriptError) Error() string {
	return fmt.Sprintf("the script failed: %v; the end of what it printed is in the log of the run on this host", e.err)
}

// shell that a script is for: bash if its first line says so, as that of KubeKey's scripts does, else sh.
func shell(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	if interpreter, ok := strings.CutPrefix(first, "#!"); ok {
		for word := range strings.FieldsSeq(interpreter) {
			if path.Base(word) == "bash" {
				return "bash"
			}
		}
	}
	return "sh"
}
