package cli

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// errDeclined is a question that was answered with no.
var errDeclined = errors.New("not confirmed; nothing was changed")

// interactive reports whether someone is there to answer.
func (s streams) interactive() bool {
	f, ok := s.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// answer asks a question and returns the line that is typed.
func (s streams) answer(question string) (string, error) {
	if err := say(s.err, "%s ", question); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(s.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimSpace(line), nil
}

// confirm asks a question that is to be answered with yes.
func (s streams) confirm(question string) error {
	answer, err := s.answer(question + " [y/N]")
	if err != nil {
		return err
	}
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return errDeclined
	}
	return nil
}

// confirmName asks for a name to be typed, before something that cannot be taken back.
func (s streams) confirmName(question, name string) error {
	answer, err := s.answer(question)
	if err != nil {
		return err
	}
	if answer != name {
		return errDeclined
	}
	return nil
}
