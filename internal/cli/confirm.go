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

// errDeclined is the error if the user does not confirm.
var errDeclined = errors.New("not confirmed; nothing was changed")

// interactive reports whether a user can answer.
func (s streams) interactive() bool {
	f, ok := s.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// answer asks a question and returns the line that the user types.
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

// confirm asks a question; every answer except yes is errDeclined.
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

// confirmName asks the user to type a name, before an action that cannot be undone.
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
