package live

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestEncoded: a cell has at most mostCell bytes of JSON, and as many of its first characters as
// fit. Shorter cells stay as they are.
func TestEncoded(t *testing.T) {
	for name, tc := range map[string]struct {
		cell  any
		begin string // repeated, it is the text of the cell
		least int    // bytes of the text that stay
	}{
		"Short":      {strings.Repeat("a", mostCell-2), "a", mostCell - 2},
		"Long":       {strings.Repeat("a", 2*mostCell), "a", mostCell / 2},
		"TwoBytes":   {strings.Repeat("ü", mostCell), "ü", mostCell / 2},
		"ThreeBytes": {strings.Repeat("\u8a9e", mostCell), "\u8a9e", mostCell/2 - 2},
		"FourBytes":  {strings.Repeat("🙂", mostCell), "🙂", mostCell / 2},
		"Escaped":    {strings.Repeat("<", mostCell/2), "<", mostCell / 8},
		"Control":    {strings.Repeat("\x01", mostCell), "\x01", mostCell / 8},
		"List":       {strings.Split(strings.Repeat("a", mostCell), ""), "", mostCell / 4},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := encoded(tc.cell)
			if err != nil || len(raw) > mostCell {
				t.Fatalf("%d bytes, %v", len(raw), err)
			}
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				t.Fatal(err)
			}
			kept, cut := strings.CutSuffix(text, "…")
			if left := strings.ReplaceAll(kept, tc.begin, ""); len(kept) < tc.least || cut == (kept == tc.cell) || tc.begin != "" && left != "" || !utf8.ValidString(kept) {
				t.Errorf("%d bytes are left, want %d at least: %.20q", len(kept), tc.least, kept)
			}
		})
	}
}
