package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDecodeTerms: decodeTerms returns what encodeTerms encoded. Another text is damage, and the
// error says why.
func TestDecodeTerms(t *testing.T) {
	for _, terms := range [][]pair{nil, {{".a", "b"}}, {{".a", "b"}, {"!c", ""}}} {
		if got, err := decodeTerms(encodeTerms(terms)); err != nil || !cmp.Equal(terms, got, cmp.AllowUnexported(pair{})) {
			t.Errorf("%v, %v, want %v", got, err, terms)
		}
	}
	for text, want := range map[string]string{`["a"]`: "the last of 1 elements has no value", `["a","b","c"]`: "the last of 3", `["a"`: "unexpected end", `{}`: "cannot unmarshal"} {
		if got, err := decodeTerms(text); !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v, %v, want damage with %q", text, got, err, want)
		}
	}
}
