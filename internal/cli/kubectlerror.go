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

// kubectlError marks an error of a command that does the same as a command of kubectl. It is
// printed as kubectl prints it, and gives the exit code of kubectl. asKubectl makes it.
type kubectlError struct{ error }

// Unwrap returns the marked error.
func (e kubectlError) Unwrap() error { return e.error }

// asKubectl returns err as a kubectlError. nil and a usageError are returned unchanged.
func asKubectl(err error) error {
	var usage usageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	return kubectlError{err}
}

// code returns the exit code of the process: that of the command in a container if that has failed,
// or else 1.
func (e kubectlError) code() int {
	var exit exec.ExitError
	if errors.As(e.error, &exit) && exit.Exited() {
		return exit.ExitStatus()
	}
	return 1
}

// lines returns the lines to print: one for each of the joined errors, without duplicates. For an
// error about an unknown cluster it requests the names of the clusters, until ctx ends.
func (e kubectlError) lines(ctx context.Context) []string {
	var lines []string
	for _, err := range each(e.error) {
		if line := kubectlMessage(ctx, err); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// kubectlMessage returns the text that kubectl prints for an error, mostly with a prefix such as
// "error: ". For an unknown cluster it requests the names of the clusters, until ctx ends.
func kubectlMessage(ctx context.Context, err error) string {
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

// failures counts errors after which a command continues, such as those of single clusters, and
// prints each to the stream to. It is not safe for concurrent use.
type failures struct {
	to    io.Writer
	count int
}

// add prints "error: WHAT: ERR" and counts the error. It does nothing if err is nil or ctx has
// ended.
func (f *failures) add(ctx context.Context, what string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	f.count++
	text := kubectlMessage(ctx, err)
	if rest, ok := strings.CutPrefix(text, "error: "); ok {
		text = rest
	}
	// an error of the stream can be printed nowhere
	_ = say(f.to, "error: %s: %s\n", what, neutral.Indented(text))
}

// err returns the error of the whole command, with the number of failures; nil if there were none.
// all is the number of attempts, and what their noun in plural, such as "clusters".
func (f *failures) err(all int, what string) error {
	if f.count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d %s failed (errors above)", f.count, all, what)
}
