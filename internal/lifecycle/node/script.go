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

// script performs a plan.Script.
type script struct{ *plan.Script }

// scriptTimeout is the default timeout of a script.
const scriptTimeout = 10 * time.Minute

// observe reports no drift, since the effects of a script cannot be seen. It runs when it changes.
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

// scriptError means that a script failed. Its output is the user's and not in the message.
type scriptError struct{ *programError }

func (e *scriptError) Error() string {
	return fmt.Sprintf("the script failed: %v; the end of what it printed is in the log of the run on this host", e.err)
}

// shell returns the interpreter of a script: bash if the first line names it, as in KubeKey's
// scripts, else sh.
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
