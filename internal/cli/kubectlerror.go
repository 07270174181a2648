package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/exec"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"orrery.dev/orrery/internal/neutral"
)

// kubectlError is told as kubectl tells it, and ends the process as it would.
type kubectlError struct{ error }

func (e kubectlError) Unwrap() error { return e.error }

// asKubectl marks an error of a command that does what one of kubectl's does.
func asKubectl(err error) error {
	var usage usageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	return kubectlError{err}
}

// code is the process's exit code: that of a command that ran in a container, or 1.
func (e kubectlError) code() int {
	var exit exec.ExitError
	if errors.As(e.error, &exit) && exit.Exited() {
		return exit.ExitStatus()
	}
	return 1
}

// lines are what is printed, one for each error.
func (e kubectlError) lines() []string {
	var lines []string
	for _, err := range each(e.error) {
		lines = append(lines, toldByKubectl(err))
	}
	return lines
}

// each are the errors of one that is several.
func each(err error) (all []error) {
	var parts []error
	switch several := err.(type) { //nolint:errorlint // one that is wrapped is told with what wraps it
	case utilerrors.Aggregate:
		parts = several.Errors()
	case interface{ Unwrap() []error }:
		parts = several.Unwrap()
	default:
		return []error{err}
	}
	for _, part := range parts {
		all = append(all, each(part)...)
	}
	return all
}

// toldByKubectl is an error in kubectl's words.
func toldByKubectl(err error) string {
	if _, ok := errors.AsType[exec.ExitError](err); ok {
		return err.Error()
	}
	text, known := cmdutil.StandardErrorMessage(plain(err))
	if !known {
		text = "error: " + strings.TrimPrefix(err.Error(), "error: ")
	}
	return strings.TrimSuffix(text, "\n")
}

// failures are what goes wrong while the rest goes on: each is told when it happens.
type failures struct {
	to    io.Writer
	count int
}

// add tells what went wrong with something, unless nothing did, or the command was ended.
func (f *failures) add(ctx context.Context, what string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	f.count++
	text := toldByKubectl(err)
	if rest, ok := strings.CutPrefix(text, "error: "); ok {
		text = rest
	}
	_ = say(f.to, "error: %s: %s\n", what, neutral.Indented(text)) // nowhere to say so
}

// err is an error if something went wrong.
func (f *failures) err(all int, what string) error {
	if f.count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d %s failed, as told above; the rest is shown", f.count, all, what)
}
