package host

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMarkerWriter writes the output of a host in pieces of every size.
func TestMarkerWriter(t *testing.T) {
	type want struct {
		Asked               int
		Group, Before, Rest string
		Open                bool
	}
	cases := map[string]struct {
		said string
		want want
	}{
		"Start":       {"MARK17\nhello", want{Group: "17", Rest: "hello", Open: true}},
		"Profile":     {"welcome\nMARK17\nhello", want{Group: "17", Before: "welcome", Rest: "hello", Open: true}},
		"Asked":       {"lecture PROMPTMARK17\nhello", want{Asked: 1, Group: "17", Before: "lecture", Rest: "hello", Open: true}},
		"AskedTwice":  {"PROMPTsorry\nPROMPT", want{Asked: 2, Before: "sorry"}},
		"NeverStarts": {"not in the sudoers file", want{Before: "not in the sudoers file"}},
		"MarkAgain":   {"MARK17\nagain MARK17\nPROMPT", want{Group: "17", Rest: "again MARK17\nPROMPT", Open: true}},
		"Binary":      {"MARK17\n\x00\xff\n", want{Group: "17", Rest: "\x00\xff\n", Open: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(tc.said); size++ {
				var got want
				var rest bytes.Buffer
				w := &markerWriter{
					marker: []byte("MARK"), opened: func(group string) { got.Group = group },
					prompt: []byte("PROMPT"), asked: func() { got.Asked++ },
					before: &tail{redactor: newRedactor(Target{})}, after: &rest,
				}
				for said := []byte(tc.said); len(said) > 0; said = said[min(size, len(said)):] {
					w.Write(said[:min(size, len(said))])
				}
				got.Before, got.Rest, got.Open = w.said(), rest.String(), w.open
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("in pieces of %d: -want +got:\n%s", size, diff)
				}
			}
		})
	}
}

// TestMarkerWriterIsBounded checks that a host that never starts the command cannot exhaust memory.
func TestMarkerWriterIsBounded(t *testing.T) {
	for name, first := range map[string]string{"NoMarker": "", "NoEndOfLine": "MARK"} {
		t.Run(name, func(t *testing.T) {
			w := &markerWriter{marker: []byte("MARK"), before: &tail{redactor: newRedactor(Target{})}}
			w.Write([]byte(first))
			for range 1000 {
				w.Write([]byte(strings.Repeat("x", 1000)))
			}
			if len(w.held)+len(w.before.buf) > 2*tailSize {
				t.Errorf("holds %d and %d bytes", len(w.held), len(w.before.buf))
			}
		})
	}
}
