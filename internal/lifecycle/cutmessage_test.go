package lifecycle

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestCutMessage: what is left of a message that is too long has no broken character.
func TestCutMessage(t *testing.T) {
	for _, before := range []string{"", "a", "ab"} {
		got := cutMessage(before+strings.Repeat("€", maxMessage), maxMessage)
		if len(got) > maxMessage || !utf8.ValidString(got) || !strings.Contains(got, "€ … €") {
			t.Errorf("%q and characters of three bytes: %d bytes", before, len(got))
		}
	}
}
