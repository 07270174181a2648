package content_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lifecycle/content"
)

// assigned lists deliveries as HOST<SOURCE DIGEST.
func assigned(all []content.Delivery) []string {
	var list []string
	for _, d := range all {
		for _, digest := range d.Digests {
			list = append(list, fmt.Sprintf("%s<%s %s", d.Host, d.Sources[digest], digest))
		}
	}
	return list
}

// TestSpread: the control machine sends two copies, and every host with a file passes it on.
func TestSpread(t *testing.T) {
	hosts, missing := []string{"a", "b", "c", "d"}, map[string][]string{"a": {"f"}, "b": {"f"}, "c": {"f"}, "d": {"f"}}
	s := content.NewSpread(hosts, missing, func(string) bool { return true })
	first := s.Next()
	if d := cmp.Diff([]string{"a< f", "b< f"}, assigned(first)); d != "" {
		t.Fatalf("first (-want +got):\n%s", d)
	}
	if more := s.Next(); len(more) > 0 || s.Idle() {
		t.Errorf("as long as nobody has it there is more: %v", assigned(more))
	}
	s.Gained("b", "f")
	s.Done(first[1])
	next := s.Next()
	if d := cmp.Diff([]string{"c<b f", "d<b f"}, assigned(next)); d != "" {
		t.Errorf("without waiting for a, which is slow (-want +got):\n%s", d)
	}
	for _, d := range append(next, first[0]) {
		s.Gained(d.Host, "f")
		s.Done(d)
	}
	if more := s.Next(); len(more) > 0 || !s.Idle() {
		t.Errorf("all have it, and there is more: %v", assigned(more))
	}
}

// TestSpreadSources: the sources of a file that some hosts have already.
func TestSpreadSources(t *testing.T) {
	nine := make([]string, 9)
	for i := range nine {
		nine[i] = fmt.Sprint(i)
	}
	for name, tc := range map[string]struct {
		have, unreached []string
		hosts           []string
		want            int    // deliveries now
		from            string // the source of the first
	}{
		"FromAHost":       {have: []string{"x"}, hosts: []string{"a"}, want: 1, from: "x"},
		"LeastLoad":       {have: []string{"x", "y"}, hosts: []string{"a", "b"}, want: 2, from: "x"},
		"FanOut":          {have: []string{"x"}, hosts: nine, want: 8, from: "x"},
		"SourceIsGone":    {have: []string{"x"}, unreached: []string{"x"}, hosts: []string{"a", "b"}, want: 1},
		"NobodyHasIt":     {hosts: nine, want: 2},
		"NothingIsMissed": {},
	} {
		t.Run(name, func(t *testing.T) {
			missing, gone := map[string][]string{}, map[string]bool{}
			for _, h := range tc.hosts {
				missing[h] = []string{"f"}
			}
			for _, h := range tc.unreached {
				gone[h] = true
			}
			s := content.NewSpread(tc.hosts, missing, func(h string) bool { return !gone[h] })
			for _, h := range tc.have {
				s.Gained(h, "f")
			}
			all := s.Next()
			if len(all) != tc.want || len(all) > 0 && all[0].Sources["f"] != tc.from {
				t.Errorf("%v, want %d, the first from %q", assigned(all), tc.want, tc.from)
			}
		})
	}
}
