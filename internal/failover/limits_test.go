package failover

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestLimitFlags(t *testing.T) {
	for name, c := range map[string]struct {
		flags string
		want  Limits   // if the flags are accepted
		wants []string // texts in the error; none: the flags are accepted
	}{
		"Defaults": {want: DefaultLimits},
		"All": {
			flags: "--resource-eviction-rate=100 --secondary-resource-eviction-rate=0 --unhealthy-cluster-threshold=1 " +
				"--large-cluster-num-threshold=0 --enable-no-execute-taint-eviction=false --failover-settling-time=0",
			want: Limits{Rate: 100, Threshold: 1},
		},
		"Least": {
			flags: "--resource-eviction-rate=0 --secondary-resource-eviction-rate=0.001 --unhealthy-cluster-threshold=0 --failover-settling-time=1h",
			want:  Limits{SecondaryRate: 0.001, LargeFleet: 10, NoExecute: true, Settling: time.Hour},
		},
		"RateNegative":     {flags: "--resource-eviction-rate=-1", wants: []string{"--resource-eviction-rate -1: want 0"}},
		"RateNaN":          {flags: "--resource-eviction-rate=NaN", wants: []string{"--resource-eviction-rate NaN: want 0"}},
		"RateInfinite":     {flags: "--resource-eviction-rate=Inf", wants: []string{"--resource-eviction-rate +Inf: want 0"}},
		"SecondaryNaN":     {flags: "--secondary-resource-eviction-rate=NaN", wants: []string{"--secondary-resource-eviction-rate NaN: want 0"}},
		"SecondaryMinus":   {flags: "--secondary-resource-eviction-rate=-Inf", wants: []string{"--secondary-resource-eviction-rate -Inf: want 0"}},
		"ThresholdAbove":   {flags: "--unhealthy-cluster-threshold=1.01", wants: []string{"--unhealthy-cluster-threshold 1.01: want a part of the clusters, from 0 to 1"}},
		"ThresholdPercent": {flags: "--unhealthy-cluster-threshold=55", wants: []string{"--unhealthy-cluster-threshold 55: want"}},
		"ThresholdMinus":   {flags: "--unhealthy-cluster-threshold=-0.1", wants: []string{"--unhealthy-cluster-threshold -0.1: want"}},
		"ThresholdNaN":     {flags: "--unhealthy-cluster-threshold=nan", wants: []string{"--unhealthy-cluster-threshold NaN: want"}},
		"FleetNegative":    {flags: "--large-cluster-num-threshold=-1", wants: []string{"--large-cluster-num-threshold -1: want"}},
		"SettlingNegative": {flags: "--failover-settling-time=-1s", wants: []string{"--failover-settling-time -1s: want 0 or more"}},
		"Several": {
			flags: "--resource-eviction-rate=-1 --unhealthy-cluster-threshold=2 --failover-settling-time=-1m",
			wants: []string{"--resource-eviction-rate -1", "--unhealthy-cluster-threshold 2", "--failover-settling-time -1m0s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l Limits
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			l.AddFlags(fs)
			if err := fs.Parse(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			c.want.flags = true
			if got := l.OrDefault(); got != l && !math.IsNaN(l.Rate+l.SecondaryRate+l.Threshold) {
				t.Errorf("limits %+v, want what the flags say", got)
			}
			before, err := l, l.Validate()
			if len(c.wants) == 0 && (err != nil || l != c.want) {
				t.Errorf("limits %+v, want %+v; error: %v", l, c.want, err)
			}
			for _, want := range c.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
			if l != before && !math.IsNaN(l.Rate) && !math.IsNaN(l.SecondaryRate) && !math.IsNaN(l.Threshold) {
				t.Errorf("Validate changed %+v to %+v", before, l)
			}
		})
	}
}

// TestZeroLimits: the zero value is valid, and evicts nothing.
func TestZeroLimits(t *testing.T) {
	if err := (&Limits{}).Validate(); err != nil {
		t.Error(err)
	}
	if got := new(Limits).OrDefault(); got != DefaultLimits {
		t.Errorf("limits without flags: %+v", got)
	}
	if v := Judge(fleetOf(3, 0, time.Time{}), State{Known: true}, Limits{}, start); v.Wait.Hold != HoldOff || v.Rate != 0 {
		t.Errorf("verdict %+v", v)
	}
}
