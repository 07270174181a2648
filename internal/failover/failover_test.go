package failover

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/scheduler"
)

// start is the present time in most tests.
var start = time.Date(2027, 2, 3, 4, 5, 6, 0, time.UTC)

// window is how long many clusters must not answer before evictions begin.
const window = 2 * scheduler.DefaultToleration

// answering returns a cluster that has answered for an hour before start.
func answering(name string) *fleet.Cluster {
	return &fleet.Cluster{Name: name, UID: types.UID(name), Joined: true, Reachable: true, Since: start.Add(-time.Hour)}
}

// lostSince returns a cluster that does not answer since a time.
func lostSince(name string, since time.Time) *fleet.Cluster {
	return &fleet.Cluster{Name: name, UID: types.UID(name), Joined: true, Lost: true, Since: since}
}

// fleetOf returns a fleet of n clusters, c00, c01 and so on. The first ones, as many as lost, do
// not answer since a time.
func fleetOf(n, lost int, since time.Time) *fleet.Snapshot {
	return fleet.NewSnapshot(1, clustersOf(n, lost, since)...)
}

func clustersOf(n, lost int, since time.Time) []*fleet.Cluster {
	var all []*fleet.Cluster
	for i := range n {
		name := fmt.Sprintf("c%02d", i)
		if i < lost {
			all = append(all, lostSince(name, since))
		} else {
			all = append(all, answering(name))
		}
	}
	return all
}

func TestJudge(t *testing.T) {
	with := func(change func(*Limits)) Limits {
		l := DefaultLimits
		change(&l)
		return l
	}
	and := func(n, lost int, since time.Time, others ...*fleet.Cluster) *fleet.Snapshot {
		return fleet.NewSnapshot(1, append(clustersOf(n, lost, since), others...)...)
	}
	var gradual, half []*fleet.Cluster
	for i := range 20 {
		name := fmt.Sprintf("c%02d", i)
		if i < 14 {
			gradual = append(gradual, lostSince(name, start.Add(time.Duration(i-14)*10*time.Second)))
		} else {
			gradual = append(gradual, answering(name))
		}
		switch {
		case i < 8:
			half = append(half, lostSince(name, start.Add(-time.Hour)))
		case i < 14:
			half = append(half, lostSince(name, start.Add(-time.Minute)))
		default:
			half = append(half, answering(name))
		}
	}
	normal, secondary := Verdict{Rate: 0.5}, Verdict{Rate: 0.1, Secondary: true}
	waits := func(hold Hold) Verdict { return Verdict{Wait: Wait{Hold: hold}} }
	many := func(until time.Time) Verdict {
		return Verdict{Secondary: true, Wait: Wait{Hold: HoldManyAtOnce, Until: until}}
	}
	known := State{Known: true}
	paused := State{Known: true, Paused: true, By: "alice", Why: "disk (test)"}
	leaving, unjoined, unprobed, unprobedLeaving := lostSince("z", start), lostSince("z", start), answering("z"), answering("z")
	leaving.Leaving, unjoined.Joined = true, false
	unprobed.Reachable, unprobed.Since = false, time.Time{}
	unprobedLeaving.Reachable, unprobedLeaving.Leaving = false, true
	ago := start.Add(-window)
	// The hub's network is back: four of six clusters answer again, and two were not probed since.
	back := clustersOf(6, 2, start.Add(-10*time.Minute))
	for i, c := range back[2:] {
		c.Since = start.Add(time.Duration(i-5) * time.Second)
	}

	for name, c := range map[string]struct {
		fleet  *fleet.Snapshot
		state  State
		limits *Limits // nil: the defaults
		want   Verdict
		says   []string // texts in the message
	}{
		"Empty":             {fleet: fleetOf(0, 0, start), state: known, want: normal},
		"AllAnswer":         {fleet: fleetOf(20, 0, start), state: known, want: normal},
		"ThirtyPercent":     {fleet: fleetOf(20, 6, start), state: known, want: normal},
		"ThirtyPercentLong": {fleet: fleetOf(20, 6, ago), state: known, want: normal},
		"AtTheThreshold":    {fleet: fleetOf(20, 11, start), state: known, want: normal},
		"BackAgain": {
			fleet: fleet.NewSnapshot(1, back...), state: known, want: Verdict{Wait: Wait{Hold: HoldSettling, Until: start.Add(27 * time.Second)}},
			says: []string{"do not answer, or began to less than 30s ago", "--unhealthy-cluster-threshold", "--failover-settling-time"},
		},
		"OneOfThree": {fleet: fleetOf(3, 1, start), state: known, want: normal},
		"SixtyPercent": {
			fleet: fleetOf(20, 12, start), state: known, want: many(start.Add(window)),
			says: []string{"more than 0.55 of the clusters", "--unhealthy-cluster-threshold", "within 10m0s", "--secondary-resource-eviction-rate"},
		},
		"SixtyPercentSoonOver": {fleet: fleetOf(20, 12, ago.Add(time.Second)), state: known, want: many(start.Add(time.Second))},
		"SixtyPercentLongAgo":  {fleet: fleetOf(20, 12, ago), state: known, want: secondary},
		"SixtyPercentOfTen": {
			fleet: fleetOf(10, 6, start), state: known, want: many(start.Add(window)), says: []string{"at most 10 clusters", "--large-cluster-num-threshold"},
		},
		"SixtyPercentOfTenLongAgo": {
			fleet: fleetOf(10, 6, ago), state: known, want: many(time.Time{}), says: []string{"at most 10 clusters", "--large-cluster-num-threshold"},
		},
		"SixtyPercentOfElevenLongAgo": {fleet: fleetOf(11, 7, ago), state: known, want: secondary},
		"TheOnlyOne":                  {fleet: fleetOf(1, 1, start), state: known, want: many(start.Add(window))},
		// It ends when 11 of the 14 are left that ceased to answer within the window.
		"OneAfterTheOther": {fleet: fleet.NewSnapshot(1, gradual...), state: known, want: many(start.Add(-12 * 10 * time.Second).Add(window))},
		"OneHalfBefore":    {fleet: fleet.NewSnapshot(1, half...), state: known, want: secondary},
		"LeavingNotCounted": {
			fleet: and(20, 11, start, leaving), state: known, want: normal,
		},
		"UnjoinedNotCounted": {fleet: and(20, 11, start, unjoined), state: known, want: normal},
		"ThresholdOne":       {fleet: fleetOf(20, 20, start), state: known, limits: new(with(func(l *Limits) { l.Threshold = 1 })), want: normal},
		"ThresholdZero":      {fleet: fleetOf(20, 1, start), state: known, limits: new(with(func(l *Limits) { l.Threshold = 0 })), want: many(start.Add(window))},
		"ThresholdZeroNone":  {fleet: fleetOf(20, 0, start), state: known, limits: new(with(func(l *Limits) { l.Threshold = 0 })), want: normal},
		"NoSmallFleet":       {fleet: fleetOf(3, 3, ago), state: known, limits: new(with(func(l *Limits) { l.LargeFleet = 0 })), want: secondary},
		"RateZero": {
			fleet: fleetOf(20, 1, start), state: known, limits: new(with(func(l *Limits) { l.Rate = 0 })),
			want: waits(HoldRate), says: []string{"--resource-eviction-rate is 0"},
		},
		"RateZeroSecondaryNot": {fleet: fleetOf(20, 12, ago), state: known, limits: new(with(func(l *Limits) { l.Rate = 0 })), want: secondary},
		"SecondaryRateZero": {
			fleet: fleetOf(20, 12, ago), state: known, limits: new(with(func(l *Limits) { l.SecondaryRate = 0 })),
			want: Verdict{Secondary: true, Wait: Wait{Hold: HoldRate}}, says: []string{"--secondary-resource-eviction-rate is 0"},
		},
		"Starting":        {fleet: and(20, 0, start, unprobed), state: known, want: waits(HoldStarting), says: []string{"cluster z "}},
		"StartingAndMany": {fleet: and(20, 20, start, unprobed), state: known, want: waits(HoldStarting), says: []string{"cluster z "}},
		"UnprobedLeaves":  {fleet: and(20, 0, start, unprobedLeaving), state: known, want: normal},
		"Paused":          {fleet: and(20, 12, start, unprobed), state: paused, want: waits(HoldPaused), says: []string{"by alice", `because "disk (test)"`, "orrery failover resume"}},
		"PausedByNobody":  {fleet: fleetOf(1, 0, start), state: State{Known: true, Paused: true}, want: waits(HoldPaused), says: []string{"failover is paused; "}},
		"PausedByHostile": {fleet: fleetOf(1, 0, start), state: State{Known: true, Paused: true, By: "a\nb", Why: "c\x1bd"}, want: waits(HoldPaused), says: []string{"by a\ufffdb, ", `"c\x1bd"`}},
		"Unknown":         {fleet: fleetOf(20, 12, start), want: waits(HoldUnknown), says: []string{"orrery-cluster/failover"}},
		"UnknownPaused":   {fleet: fleetOf(20, 12, start), state: State{Paused: true}, want: waits(HoldUnknown)},
		"TurnedOff": {
			fleet: fleetOf(20, 12, start), limits: new(with(func(l *Limits) { l.NoExecute = false })),
			want: waits(HoldOff), says: []string{"--enable-no-execute-taint-eviction"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			limits := DefaultLimits
			if c.limits != nil {
				limits = *c.limits
			}
			got := Judge(c.fleet, c.state, limits, start)
			message := got.Wait.Message
			got.Wait.Message = ""
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
			if (message == "") != (c.want.Wait.Hold == "") || strings.ContainsAny(message, "\n\x1b") {
				t.Errorf("message %q", message)
			}
			for _, text := range c.says {
				if !strings.Contains(message, text) {
					t.Errorf("message %q, want %q in it", message, text)
				}
			}
			if until := got.Wait.Until; !until.IsZero() {
				if before := Judge(c.fleet, c.state, limits, until.Add(-1)); before.Wait.Hold != got.Wait.Hold || before.Wait.Message != message {
					t.Errorf("just before %s: %+v", until, before)
				}
				if after := Judge(c.fleet, c.state, limits, until); !after.Wait.Until.IsZero() || after.Wait.Message == message {
					t.Errorf("at %s: %+v", until, after)
				}
			}
		})
	}
}

func TestHoldOfCluster(t *testing.T) {
	added := func(at time.Time) *corev1.Taint {
		return &corev1.Taint{Key: "disk", Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(at))}
	}
	count := State{Known: true, CountFrom: start.Add(-time.Hour)}
	recent, recentLost := answering("a"), lostSince("a", start.Add(-10*time.Second))
	recent.Since = start.Add(-10 * time.Second)
	unprobed := answering("a")
	unprobed.Reachable, unprobed.Since = false, time.Time{}
	for name, c := range map[string]struct {
		cluster  *fleet.Cluster
		taint    *corev1.Taint
		state    State
		settling time.Duration
		want     Wait
	}{
		"None":            {cluster: answering("a"), taint: added(start)},
		"NoneLost":        {cluster: lostSince("a", start.Add(-time.Hour)), taint: added(start)},
		"Unconfirmed":     {cluster: answering("a"), taint: added(count.CountFrom.Add(-time.Second)), state: count, want: Wait{Hold: HoldUnconfirmed}},
		"Confirmed":       {cluster: answering("a"), taint: added(count.CountFrom.Add(-time.Second)), state: State{Known: true}},
		"AtThatTime":      {cluster: answering("a"), taint: added(count.CountFrom), state: count},
		"WithoutTime":     {cluster: answering("a"), taint: &corev1.Taint{Key: "disk"}, state: count, want: Wait{Hold: HoldUnconfirmed}},
		"WithoutTimes":    {cluster: answering("a"), taint: &corev1.Taint{Key: "disk"}},
		"Began":           {cluster: recent, taint: added(start), settling: 30 * time.Second, want: Wait{Hold: HoldSettling, Until: start.Add(20 * time.Second)}},
		"Ceased":          {cluster: recentLost, taint: added(start), settling: 30 * time.Second, want: Wait{Hold: HoldSettling, Until: start.Add(20 * time.Second)}},
		"Settled":         {cluster: recent, taint: added(start), settling: 10 * time.Second},
		"SettlingOff":     {cluster: recent, taint: added(start)},
		"UnconfirmedMost": {cluster: recent, taint: added(start.Add(-2 * time.Hour)), state: count, settling: time.Hour, want: Wait{Hold: HoldUnconfirmed}},
		"Unprobed":        {cluster: unprobed, taint: added(start), want: Wait{Hold: HoldStarting}},
	} {
		t.Run(name, func(t *testing.T) {
			limits := Limits{Settling: c.settling}
			got := limits.Cluster(c.cluster, c.taint, c.state, start)
			later := limits.Cluster(c.cluster, c.taint, c.state, start.Add(time.Second))
			if later != got && got.Hold != "" {
				t.Errorf("a second later %+v, want still %+v", later, got)
			}
			if (got.Message == "") != (c.want.Hold == "") {
				t.Errorf("message %q", got.Message)
			}
			got.Message = ""
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("wait (-want +got):\n%s", diff)
			}
		})
	}
}
