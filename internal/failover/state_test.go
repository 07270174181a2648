package failover

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStateRoundTrip(t *testing.T) {
	zone := time.FixedZone("east", 5*60*60)
	for name, s := range map[string]State{
		"New":     {Known: true, CountFrom: start},
		"Paused":  {Known: true, Paused: true, By: "alice", Why: "disk test", At: start, CountFrom: start.Add(-time.Hour)},
		"Resumed": {Known: true, By: "system:serviceaccount:a:b", Why: "over\n\x1b[31m", At: start},
		"Empty":   {Known: true},
		"Zone":    {Known: true, At: start.In(zone), CountFrom: start.In(zone)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseState(s.Data())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s, got); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if len(s.Data()) != 5 {
				t.Errorf("data %v, want five keys", s.Data())
			}
		})
	}
	if got, err := ParseState(State{CountFrom: start.Add(300 * time.Millisecond)}.Data()); err != nil || !got.CountFrom.Equal(start) || !got.Known {
		t.Errorf("state %+v, %v, want the time in seconds", got, err)
	}
}

// TestStateHostile: an invalid ConfigMap is an error that names the keys, and pauses failover.
func TestStateHostile(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		data  map[string]string
		want  State
		wants []string // texts in the error; none: there is no error
	}{
		"Nil":          {want: State{Known: true, Paused: true}, wants: []string{`paused: "": want true or false`}},
		"OtherKeys":    {data: map[string]string{"Paused": "false"}, want: State{Known: true, Paused: true}, wants: []string{"paused"}},
		"UpperCase":    {data: map[string]string{"paused": "False"}, want: State{Known: true, Paused: true}, wants: []string{`paused: "False"`}},
		"Number":       {data: map[string]string{"paused": "0"}, want: State{Known: true, Paused: true}, wants: []string{`paused: "0"`}},
		"Blank":        {data: map[string]string{"paused": "false "}, want: State{Known: true, Paused: true}, wants: []string{"paused"}},
		"OnlyPaused":   {data: map[string]string{"paused": "true"}, want: State{Known: true, Paused: true}},
		"OnlyNot":      {data: map[string]string{"paused": "false", "another": "x"}, want: State{Known: true}},
		"TimeInvalid":  {data: map[string]string{"paused": "false", "at": "yesterday"}, want: State{Known: true, Paused: true}, wants: []string{`at: "yesterday": want a time`}},
		"CountInvalid": {data: map[string]string{"paused": "false", "taintsCountFrom": "0"}, want: State{Known: true, Paused: true}, wants: []string{`taintsCountFrom: "0"`}},
		"Several": {
			data:  map[string]string{"paused": "maybe", "at": "x", "taintsCountFrom": "2027-02-03T04:05:06Z", "by": "bob"},
			want:  State{Known: true, Paused: true, By: "bob", CountFrom: start},
			wants: []string{`paused: "maybe"`, `at: "x"`},
		},
		"ValuesLong": {
			data: map[string]string{"paused": long, "at": long}, want: State{Known: true, Paused: true}, wants: []string{"paused", "at"},
		},
		"TextsLong": {
			data: map[string]string{"paused": "true", "by": long, "why": long},
			want: State{Known: true, Paused: true, By: long[:longestBy] + "…", Why: long[:longestWhy] + "…"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseState(c.data)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if len(c.wants) == 0 && err != nil {
				t.Error(err)
			}
			for _, want := range c.wants {
				if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 1024 {
					t.Errorf("error %.2000v, want %q in it, and a short one", err, want)
				}
			}
		})
	}
}
