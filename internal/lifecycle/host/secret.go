package host

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Secret is a text that no message, log and JSON shows. string(secret) returns the text.
type Secret string

// hidden replaces secrets in texts.
const hidden = "[hidden]"

// String returns a placeholder.
func (Secret) String() string { return hidden }

// Format writes a placeholder for every verb. Without it %d would show the text.
func (Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, hidden) // a fmt.State does not fail
}

// MarshalJSON returns a placeholder.
func (Secret) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// redactor replaces a target's passwords and the lines of its private key in the output of the
// host. longest is the length of the longest of them, in bytes.
type redactor struct {
	replacer *strings.Replacer
	longest  int
}

// newRedactor returns the redactor for the secrets in t.
func newRedactor(t Target) redactor {
	secrets := []string{string(t.Password), string(t.SudoPassword)}
	// A key may be printed line by line.
	for line := range strings.Lines(string(t.PrivateKey)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
			secrets = append(secrets, line)
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return s == "" })
	// Replace the longest secret first, because one secret may contain another.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	r := redactor{}
	pairs := make([]string, 0, 2*len(secrets))
	for _, s := range secrets {
		pairs = append(pairs, s, hidden)
		r.longest = max(r.longest, len(s))
	}
	r.replacer = strings.NewReplacer(pairs...)
	return r
}

// redact returns s with every secret replaced by a placeholder.
func (r redactor) redact(s string) string { return r.replacer.Replace(s) }
