package cli

import "testing"

// TestHarmless holds that no text of an object steers a terminal.
func TestHarmless(t *testing.T) {
	for name, tc := range map[string]struct{ text, allowed, want string }{
		"Plain":        {"naïve 日本語 👩‍👩‍👧", "", "naïve 日本語 👩‍👩‍👧"}, //nolint:gosmopolitan // any script is
		"Lines":        {"a\tb\nc\rd", "", "a\ufffdb\ufffdc\ufffdd"},
		"LinesAllowed": {"a\tb\nc\rd", "\n\t", "a\tb\nc\ufffdd"},
		"Escapes":      {"\x1b[2J\x07\u009b1m", "\n\t", "\ufffd[2J\ufffd\ufffd1m"},
		"Order":        {"\u202eevil\u202c \u2066x\u2069 \u200f\u061c", "\n\t", "\ufffdevil\ufffd \ufffdx\ufffd \ufffd\ufffd"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := harmlessBut(tc.text, tc.allowed); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
