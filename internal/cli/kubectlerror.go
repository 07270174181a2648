package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/client-go/util/exec"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"orrery.dev/orrery/internal/neutral"
)

// kubectlError is an error that is printed as kubectl does, and has the exit code of kubectl.
type kubectlError struct{ error }

func (e kubectlError) Unwrap() error { return e.error }

// asKubectl marks an error of a command that does the same as a command of kubectl.
func asKubectl(err error) error {
	var usage usageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	return kubectlError{err}
}

// code returns the exit code of the process: that of a command that ran in a container, or 1.
func (e kubectlError) code() int {
	var exit exec.ExitError
	if errors.As(e.error, &exit) && exit.Exited() {
		return exit.ExitStatus()
	}
	return 1
}

// lines returns the lines to print, one for each error, without duplicates.
func (e kubectlError) lines(ctx context.Context) []string {
	var lines []string
	for _, err := range each(e.error) {
		if line := toldByKubectl(ctx, err); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// toldByKubectl returns the text that kubectl prints for an error.
func toldByKubectl(ctx context.Context, err error) string {
	if _, ok := errors.AsType[exec.ExitError](err); ok {
		return err.Error()
	}
	if unknown, ok := errors.AsType[unknownClusterError](err); ok {
		return "error: " + unknown.sentence(ctx)
	}
	text, known := cmdutil.StandardErrorMessage(plain(err))
	if !known {
		text = "error: " + strings.TrimPrefix(withoutRequests(err), "error: ")
	}
	return strings.TrimSuffix(text, "\n")
}

// failures prints and counts errors that do not stop the command.
type failures struct {
	to    io.Writer
	count int
}

// add prints err after the subject what, unless err is nil or the command was interrupted.
func (f *failures) add(ctx context.Context, what string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	f.count++
	text := toldByKubectl(ctx, err)
	if rest, ok := strings.CutPrefix(text, "error: "); ok {
		text = rest
	}
	// there is no other stream for the error
	_ = say(f.to, "error: %s: %s\n", what, neutral.Indented(text))
}

// err returns an error if there were failures; all is the number of attempts.
func (f *failures) err(all int, what string) error {
	if f.count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d %s failed, as told above; the rest is shown", f.count, all, what)
}
