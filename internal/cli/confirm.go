package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// errDeclined is the error of a command that the user did not confirm, or that was interrupted at
// its question. Nothing was changed then.
var errDeclined = errors.New("not confirmed; nothing was changed")

// interactive reports whether standard input is a terminal, so that a user can answer a
// question.
func (s streams) interactive() bool {
	f, ok := s.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// answer prints a question to s.err and returns the line that the user types, without spaces around
// it. The end of the input ends the line. If ctx ends first, the error is errDeclined, and a
// goroutine continues to read s.in. If s.in is not a terminal, input after the line may be lost, so
// only one question is possible.
func (s streams) answer(ctx context.Context, question string) (string, error) {
	if err := say(s.err, "%s ", question); err != nil {
		return "", err
	}
	type typed struct {
		line string
		err  error
	}
	done := make(chan typed, 1)
	go func() { // the read cannot be interrupted
		line, err := bufio.NewReader(s.in).ReadString('\n')
		done <- typed{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", errDeclined
	case t := <-done:
		if t.err != nil && !errors.Is(t.err, io.EOF) {
			return "", fmt.Errorf("read the answer: %w", t.err)
		}
		return strings.TrimSpace(t.line), nil
	}
}

// confirm asks a question that the user answers with yes or no. It returns nil for y and yes, in
// any case of letters. For every other answer, and if ctx ends, it returns errDeclined.
func (s streams) confirm(ctx context.Context, question string) error {
	answer, err := s.answer(ctx, question+" [y/N]")
	if err != nil {
		return err
	}
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return errDeclined
	}
	return nil
}

// confirmName asks for a name before an action that cannot be undone, as question says. It returns
// nil if the user types exactly that name. For every other answer, and if ctx ends, it returns
// errDeclined.
func (s streams) confirmName(ctx context.Context, question, name string) error {
	answer, err := s.answer(ctx, question)
	if err != nil {
		return err
	}
	if answer != name {
		return errDeclined
	}
	return nil
}
