package mark

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var source = Source{Template: "6f1a-22", Generation: 7, Epoch: 1, Version: 4711, Placement: 3, Cluster: "c-1"}

func TestSourceRoundTrip(t *testing.T) {
	key := Key(strings.Repeat("k", KeySize))
	value := key.Sign(source)
	got, err := key.Verify(value)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(source, got); diff != "" {
		t.Errorf("source (-want +got):\n%s", diff)
	}
}

// What an earlier version marked, without a placement, is still this hub's.
func TestSourceOfAnEarlierVersion(t *testing.T) {
	key := Key(strings.Repeat("k", KeySize))
	const text = "6f1a-22.7.1:4711.c-1"
	want := source
	want.Placement = 0
	got, err := key.Verify(text + "." + key.mac(text))
	if err != nil || got != want {
		t.Errorf("it is read as %+v, %v; want %+v", got, err, want)
	}
}

func TestSourcesThatThisHubDidNotMakeAreRefused(t *testing.T) {
	key := Key(strings.Repeat("k", KeySize))
	value := key.Sign(source)
	newer := source
	newer.Version++
	mac := value[strings.LastIndexByte(value, '.'):]
	forged := key.Sign(newer)
	for name, value := range map[string]string{
		"OfAnotherHub": Key(strings.Repeat("x", KeySize)).Sign(source),
		"MadeNewer":    forged[:strings.LastIndexByte(forged, '.')] + mac,
		"WithoutMAC":   strings.TrimSuffix(value, mac),
		"Empty":        "",
		"NoNumbers":    "a.b.c.d.e",
		"NoEpoch":      "a.1.2.d.e",
		"NoPlacement":  "a.1.2:3.d.e",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := key.Verify(value); err == nil {
				t.Errorf("%q is taken for %+v", value, got)
			}
		})
	}
}

func TestNewer(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Source)
		want   bool
	}{
		"Same":               {func(*Source) {}, false},
		"Older":              {func(s *Source) { s.Generation--; s.Version-- }, false},
		"GenerationAbove":    {func(s *Source) { s.Generation++ }, true},
		"VersionAbove":       {func(s *Source) { s.Version++ }, true},
		"PlacementAbove":     {func(s *Source) { s.Placement++ }, true},
		"OfAnotherTemplate":  {func(s *Source) { s.Generation++; s.Template = "other" }, false},
		"BeforeConfirmation": {func(s *Source) { s.Generation++; s.Version++; s.Epoch-- }, false},
		"EpochAbove":         {func(s *Source) { s.Epoch++; s.Version-- }, true},
	} {
		t.Run(name, func(t *testing.T) {
			copied := source
			tc.change(&copied)
			if got := copied.Newer(source); got != tc.want {
				t.Errorf("newer: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestOrphan(t *testing.T) {
	for value, want := range map[string]Orphan{
		"hub/uid":         {Hub: "hub", Template: "uid"},
		"hub/uid/Adopted": {Hub: "hub", Template: "uid", Origin: "Adopted"},
		"hub/":            {Hub: "hub"},

		"hub/uid.1.0:7:2.c.mac":         {Hub: "hub", Template: "uid", Source: "uid.1.0:7:2.c.mac"},
		"hub/uid.1.0:7:2.c.mac/Adopted": {Hub: "hub", Template: "uid", Source: "uid.1.0:7:2.c.mac", Origin: "Adopted"},
	} {
		got, ok := ParseOrphan(value)
		if diff := cmp.Diff(want, got); !ok || diff != "" || got.String() != value {
			t.Errorf("%q is read as %+v and written as %q", value, got, got.String())
		}
	}
	for _, value := range []string{"", "hub", "/uid", "a/b/c/d"} {
		if got, ok := ParseOrphan(value); ok {
			t.Errorf("%q is taken for %+v", value, got)
		}
	}
}
