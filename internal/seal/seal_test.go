package seal

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func parse(t *testing.T, lines ...string) *Keys {
	t.Helper()
	k, err := Parse([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What is sealed opens with its key and as what it was sealed as, and in no other way.
func TestOpen(t *testing.T) {
	first, second := New(), New()
	before, rotated, other := parse(t, first), parse(t, "# the newest first", "", second, first+"\r"), parse(t, New())
	plain := []byte("hunter2")
	sealed, err := before.Seal(plain, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	again, err := before.Seal(plain, "a", "b")
	if err != nil || bytes.Equal(sealed, again) {
		t.Errorf("sealed twice it is the same: %v", err)
	}
	if bytes.Contains(sealed, plain) {
		t.Error("it can be read")
	}
	newest, err := rotated.Seal(plain, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	altered := slices.Clone(sealed)
	altered[len(altered)-1] ^= 1
	salted := slices.Clone(sealed)
	salted[HeadSize] ^= 1
	for name, c := range map[string]struct {
		keys     *Keys
		sealed   []byte
		identity []string
		want     error
	}{
		"Same":             {before, sealed, []string{"a", "b"}, nil},
		"AfterRotation":    {rotated, sealed, []string{"a", "b"}, nil},
		"BeforeRotation":   {before, newest, []string{"a", "b"}, ErrKey},
		"OtherKey":         {other, sealed, []string{"a", "b"}, ErrKey},
		"NoKeys":           {nil, sealed, []string{"a", "b"}, ErrKey},
		"Moved":            {before, sealed, []string{"a", "c"}, ErrForeign},
		"NamesRunTogether": {before, sealed, []string{"ab"}, ErrForeign},
		"Altered":          {before, altered, []string{"a", "b"}, ErrForeign},
		"Salted":           {before, salted, []string{"a", "b"}, ErrForeign},
		"Short":            {before, sealed[:HeadSize+saltSize-1], []string{"a", "b"}, ErrForeign},
		"Cut":              {before, sealed[:len(sealed)-1], []string{"a", "b"}, ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.keys.Open(c.sealed, c.identity...)
			if !errors.Is(err, c.want) || c.want == nil && !bytes.Equal(got, plain) {
				t.Errorf("%q, %v; want %v", got, err, c.want)
			}
		})
	}
	if !bytes.HasPrefix(newest, rotated.Newest()) || bytes.HasPrefix(sealed, rotated.Newest()) {
		t.Error("the newest key does not seal")
	}
	if !rotated.Knows(sealed) || other.Knows(sealed) || (*Keys)(nil).Knows(sealed) {
		t.Error("it is not known who knows the key")
	}
}

func TestParse(t *testing.T) {
	for name, text := range map[string]string{
		"Empty": "\n# nothing\n", "NoBase64": "sesame, open", "Short": "c2hvcnQ=", "SecondLine": New() + "\nc2hvcnQ=",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(text))
			if err == nil || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "c2hvcnQ") || !strings.Contains(err.Error(), "openssl rand") {
				t.Errorf("%v: it must say what to do, and nothing of what is there", err)
			}
		})
	}
}
