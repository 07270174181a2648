package reconciler

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTruncate: a message that is too long is cut at the end of a character.
func TestTruncate(t *testing.T) {
	for _, before := range []string{"", "a", "ab"} {
		got := truncate(before + strings.Repeat("€", maxMessage))
		if len(got) > maxMessage || !utf8.ValidString(got) || !strings.HasSuffix(got, "€…") {
			t.Errorf("%q and characters of three bytes: %d bytes, end %q", before, len(got), got[len(got)-9:])
		}
	}
	if whole := strings.Repeat("a", maxMessage); truncate(whole) != whole {
		t.Error("a message of the maximum length is cut")
	}
}
