package member

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestProbeFlags(t *testing.T) {
	for name, c := range map[string]struct {
		flags string
		wants []string // texts in the error; none: the flags are accepted
	}{
		"Defaults":        {},
		"Shortest":        {flags: "--probe-interval=500ms --probe-timeout=500ms --probe-failures=1"},
		"Longest":         {flags: "--probe-interval=5m --probe-timeout=5m --probe-failures=100"},
		"TimeoutEqual":    {flags: "--probe-timeout=10s"},
		"IntervalShort":   {flags: "--probe-interval=499ms --probe-timeout=500ms", wants: []string{"--probe-interval 499ms: is less than 500ms", "set it to 500ms or more"}},
		"IntervalMinus":   {flags: "--probe-interval=-10s", wants: []string{"--probe-interval -10s: is less than 500ms"}},
		"IntervalLong":    {flags: "--probe-interval=1h", wants: []string{"--probe-interval 1h0m0s: is more than 5m0s", "set it to 5m0s or less"}},
		"TimeoutShort":    {flags: "--probe-timeout=1ms", wants: []string{"--probe-timeout 1ms: is less than 500ms", "set it to 500ms or more"}},
		"TimeoutMinus":    {flags: "--probe-timeout=-1s", wants: []string{"--probe-timeout -1s: is less than 500ms"}},
		"TimeoutAbove":    {flags: "--probe-timeout=10001ms", wants: []string{"--probe-timeout 10.001s: is more than --probe-interval 10s", "set --probe-timeout to 10s or less, or raise --probe-interval"}},
		"OnlyTheInterval": {flags: "--probe-interval=1s", wants: []string{"--probe-timeout 5s: is more than --probe-interval 1s"}},
		"IntervalZero":    {flags: "--probe-interval=0", wants: []string{"--probe-interval 0s: is less than 500ms"}},
		"TimeoutZero":     {flags: "--probe-timeout=0", wants: []string{"--probe-timeout 0s: is less than 500ms"}},
		"FailuresZero":    {flags: "--probe-failures=0", wants: []string{"--probe-failures 0: want 1 to 100"}},
		"FailuresMinus":   {flags: "--probe-failures=-1", wants: []string{"--probe-failures -1: want 1 to 100"}},
		"FailuresMany":    {flags: "--probe-failures=101", wants: []string{"--probe-failures 101: want 1 to 100"}},
		"Several":         {flags: "--probe-interval=1ms --probe-timeout=2ms --probe-failures=-2", wants: []string{"--probe-interval 1ms", "--probe-timeout 2ms", "--probe-failures -2"}},
	} {
		t.Run(name, func(t *testing.T) {
			var p Probes
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			p.AddFlags(fs)
			if err := fs.Parse(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			refused(t, p.Validate(), c.wants)
		})
	}
}

// refused fails the test unless err has each of the texts, or is nil if there are none.
func refused(t *testing.T, err error, wants []string) {
	t.Helper()
	if len(wants) == 0 && err != nil {
		t.Errorf("refused: %v", err)
	}
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// TestProbesZeroIsDefault: without flags, the probes are as the documentation says.
func TestProbesZeroIsDefault(t *testing.T) {
	want := Probes{Interval: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3}
	o := Options{}.withDefaults()
	if got := (Probes{Interval: o.ProbeInterval, Timeout: o.ProbeTimeout, Failures: o.FailureThreshold}); got != want {
		t.Errorf("probes %+v, want %+v", got, want)
	}
	if err := (&Probes{}).Validate(); err != nil {
		t.Error(err)
	}
}
