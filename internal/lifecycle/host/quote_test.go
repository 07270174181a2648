package host

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// FuzzQuote lets a real shell parse three words.
func FuzzQuote(f *testing.F) {
	for _, word := range []string{
		"", " ", "plain", "it's", `"`, `\`, "$HOME", "`id`", "$(id)", "*", "~", "~root", "a=b", "-n", "#", ";", "&", "|", "<", ">",
		"(", "!", "{a,b}", "[a]", "\n", "\t", "\r", "ü", "\xff", "''", `'\''`,
	} {
		f.Add(word, "=x", word+word)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		words := []string{a, b, c}
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "\x00") }) {
			return // a word of a command has no NUL byte
		}
		for _, name := range []string{"sh", "bash"} {
			// As the login shell gets it from sshd, and with one more shell.
			for _, line := range []string{
				Quote(append([]string{"printf", `%s\0`}, words...)...),
				Quote("sh", "-c", `printf '%s\0' "$@"`, "sh", a, b, c),
				Quote("sh", "-c", Quote(append([]string{"printf", `%s\0`}, words...)...)),
			} {
				out, err := exec.Command(name, "-c", line).Output()
				if err != nil {
					t.Fatalf("%s: %q: %v", name, line, err)
				}
				if want := []byte(strings.Join(words, "\x00") + "\x00"); !bytes.Equal(out, want) {
					t.Errorf("%s: %q: want %q, got %q", name, line, want, out)
				}
			}
		}
	})
}
