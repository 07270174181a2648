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

// script is the kind of step that performs a plan.Script: it runs a shell script of the user.
type script struct{ *plan.Script }

// scriptTimeout is the timeout of a script whose Timeout is 0.
const scriptTimeout = 10 * time.Minute

// observe implements kind. It reports no drift, since the effects of a script are unknown. A script
// runs again only when the step changes.
func (c script) observe(context.Context, *session, *record) (string, error) { return "", nil }

// capture implements kind. The effects of a script are unknown, so it records nothing.
func (c script) capture(context.Context, *session, *record) error { return nil }

// apply implements kind. It runs the script c.Run.
func (c script) apply(ctx context.Context, s *session, _ *record) error { return c.run(ctx, s, c.Run) }

// revert implements kind. It runs the script c.Undo, if that is set.
func (c script) revert(ctx context.Context, s *session, _ *record) error {
	if c.Undo == "" {
		return nil
	}
	return c.run(ctx, s, c.Undo)
}

// run runs the script text in the shell that its first line names. If the script fails or takes
// longer than its timeout, the error is a *scriptError.
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

// scriptError means that a script of the user failed. Its message leaves out the output of the
// script, which may contain secrets; Event.Output has it.
type scriptError struct{ *programError }

func (e *scriptError) Error() string {
	return fmt.Sprintf("the script failed: %v; the end of what it printed is in the log of the run on this host", e.err)
}

// shell returns the interpreter of a script: "bash" if the first line names bash, as in KubeKey's
// scripts, else "sh".
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
