package failover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

// world is a Queue with a clock and a fleet of its own.
type world struct {
	*Queue

	t        *testing.T
	time     time.Time
	fleet    *fleet.Snapshot
	requeued []string // names of the templates that were requeued since the last call of took
}

// newWorld returns a world in which failover began a minute before start, and clusters answer.
func newWorld(t *testing.T, limits Limits, all ...*fleet.Cluster) *world {
	t.Helper()
	w := &world{t: t, time: start.Add(-time.Minute), fleet: fleet.NewSnapshot(1, all...)}
	w.Queue = NewQueue(limits, func() *fleet.Snapshot { return w.fleet }, func() time.Time { return w.time })
	w.Requeue(func(keys ...binding.Template) {
		for _, k := range keys {
			w.requeued = append(w.requeued, k.Name)
		}
	})
	w.SetState(State{Known: true})
	w.time = start
	return w
}

// became replaces the fleet.
func (w *world) became(all ...*fleet.Cluster) {
	w.fleet = fleet.NewSnapshot(w.fleet.Version()+1, all...)
	w.FleetChanged()
}

// pass calls step as Run does, for so long. It returns when the queue requeued which template, as
// SECONDS:NAME.
func (w *world) pass(d time.Duration) (log []string) {
	w.t.Helper()
	end := w.time.Add(d)
	for range 10000 {
		keys, next := w.step()
		w.decide(keys...)
		for _, name := range w.took() {
			log = append(log, fmt.Sprintf("%v:%s", w.time.Sub(start).Seconds(), name))
		}
		switch {
		case !next.IsZero() && !next.After(w.time):
			w.t.Fatalf("at %s the queue wants to go on at %s", w.time, next)
		case next.IsZero() || next.After(end):
			w.time = end
			return log
		}
		w.time = next
	}
	w.t.Fatal("the queue does not rest")
	return nil
}

// took returns the names of the templates that were requeued since the last call, in order.
func (w *world) took() []string {
	names := w.requeued
	w.requeued = nil
	return names
}

// granted reports whether the eviction of a template from a cluster has a grant, also if a hold
// began after it.
func granted(q *Queue, k binding.Template, cluster string, uid types.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[k][cluster]
	return e != nil && e.granted && e.want.UID == uid
}

func (w *world) granted(k binding.Template, cluster string, uid types.UID) bool {
	return granted(w.Queue, k, cluster, uid)
}

// waits returns why a template does not leave a cluster of the fleet that it wants to leave.
func (w *world) waits(name, cluster string) Wait {
	w.t.Helper()
	c, ok := w.fleet.Cluster(cluster)
	e := w.entries[template(name)][cluster]
	if !ok || e == nil {
		w.t.Fatalf("%s does not want to leave %s", name, cluster)
	}
	return w.Evict(template(name), c, &e.want.Taint)
}

// same fails the test unless the lists are equal.
func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func template(name string) binding.Template {
	return binding.Template{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: name}
}

// from returns a want that is due since an age before start.
func from(cluster string, age time.Duration) Want {
	return Want{
		Cluster: cluster, UID: types.UID(cluster), Due: start.Add(-age),
		Taint: corev1.Taint{Key: "disk", Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(start.Add(-time.Hour)))},
	}
}

func TestOrder(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"), answering("b"))
	urgent, low := from("a", time.Second), from("a", time.Hour)
	urgent.Priority, low.Priority = 1000, -1
	for name, want := range map[string]Want{
		"urgent": urgent, "low": low, "old": from("b", 3*time.Minute), "d": from("a", time.Minute), "c": from("b", time.Minute), "new": from("a", 0),
	} {
		w.Set(template(name), []Want{want})
	}
	other := template("c")
	other.Namespace = "bar"
	w.Set(other, []Want{from("a", time.Minute)})
	same(t, "grants", w.pass(time.Minute), "0:urgent", "2:old", "4:c", "6:c", "8:d", "10:new", "12:low")
	if !w.granted(other, "a", "a") || !w.granted(template("c"), "b", "b") || w.granted(template("c"), "a", "a") {
		t.Error("the grants are those of other evictions")
	}

	// A template whose priority grows while it waits comes first.
	for _, name := range []string{"x", "y"} {
		w.Set(template(name), []Want{from("a", time.Minute)})
	}
	urgent.Due = start.Add(-time.Minute)
	w.Set(template("y"), []Want{urgent})
	same(t, "grants", w.pass(time.Minute), "60:y", "62:x")
}

func TestRate(t *testing.T) {
	for name, c := range map[string]struct {
		rate float64
		want []string
	}{
		"Default":  {rate: 0.5, want: []string{"0:a", "2:b", "4:c"}},
		"Fast":     {rate: 100, want: []string{"0:a", "0.01:b", "0.02:c"}},
		"Slow":     {rate: 0.1, want: []string{"0:a", "10:b", "20:c"}},
		"Hours":    {rate: 1.0 / 8192, want: []string{"0:a", "8192:b", "16384:c"}},
		"VerySlow": {rate: 1e-300, want: []string{"0:a"}},
		"None":     {},
	} {
		t.Run(name, func(t *testing.T) {
			limits := DefaultLimits
			limits.Rate = c.rate
			w := newWorld(t, limits, answering("a"))
			for _, name := range []string{"b", "c", "a"} {
				w.Set(template(name), []Want{from("a", time.Minute)})
			}
			same(t, "grants", w.pass(5*time.Hour), c.want...)
			if len(c.want) == 0 {
				if wait := w.waits("a", "a"); wait.Hold != HoldRate || !strings.Contains(wait.Message, "--resource-eviction-rate is 0") {
					t.Errorf("it waits: %+v", wait)
				}
			}
		})
	}
	// Time without evictions does not add up: the burst is 1.
	w := newWorld(t, DefaultLimits, answering("a"))
	w.time = start.Add(time.Hour)
	for _, name := range []string{"a", "b"} {
		w.Set(template(name), []Want{from("a", time.Minute)})
	}
	same(t, "grants", w.pass(time.Minute), "3600:a", "3602:b")
}

func TestSecondaryRate(t *testing.T) {
	w := newWorld(t, DefaultLimits, clustersOf(20, 12, start.Add(-window))...)
	for _, name := range []string{"a", "b"} {
		w.Set(template(name), []Want{from("c00", time.Minute)})
	}
	if wait := w.waits("b", "c00"); wait.Hold != HoldRate || !strings.Contains(wait.Message, "0.1 begin in a second (--secondary-resource-eviction-rate)") {
		t.Errorf("it waits: %+v", wait)
	}
	same(t, "grants", w.pass(9*time.Second), "0:a")
	// The clusters answer again: b may begin at the normal rate, and waits for another reason.
	w.became(clustersOf(20, 1, start.Add(-window))...)
	same(t, "grants", w.pass(time.Minute), "9:b", "9.2:b")
}

// TestManyAtOnce: nothing is granted while many clusters ceased to answer a short time ago.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t, DefaultLimits, clustersOf(20, 12, start.Add(-time.Hour))...)
	w.became(clustersOf(20, 12, start.Add(-time.Minute))...)
	w.time = w.time.Add(overlap)
	for _, name := range []string{"a", "b"} {
		w.Set(template(name), []Want{from("c00", time.Second)})
	}
	if wait := w.waits("b", "c00"); wait.Hold != HoldManyAtOnce || !wait.Until.Equal(start.Add(-time.Minute).Add(window)) {
		t.Errorf("it waits: %+v", wait)
	}
	// At the end both are decided on again, as the reason changes. Then they leave.
	same(t, "requeued", w.pass(time.Hour), "540:a", "540:b", "540:a", "550:b")
}

// TestManyAtOnceAfterAnEmptyQueue: the end of the hold wakes the queue also if it had nothing to do
// for a while, and the verdict is the same as before.
func TestManyAtOnceAfterAnEmptyQueue(t *testing.T) {
	since := start.Add(-time.Minute)
	w := newWorld(t, DefaultLimits, clustersOf(20, 12, since)...)
	w.time = w.time.Add(overlap)
	for _, c := range []struct {
		what  string
		wants []Want
		next  time.Time
	}{
		{"wanted", []Want{from("c15", time.Second)}, since.Add(window)},
		{"left", nil, time.Time{}},
		{"wanted again", []Want{from("c15", time.Second)}, since.Add(window)},
	} {
		w.Set(template("web"), c.wants)
		if _, next := w.step(); !next.Equal(c.next) {
			t.Errorf("%s: next %s, want %s", c.what, next, c.next)
		}
	}
	w.took()
	same(t, "requeued", w.pass(time.Hour), "540:web", "540:web")
}

func TestGrantEnds(t *testing.T) {
	again := from("a", time.Minute)
	again.Taint.TimeAdded = new(metav1.NewTime(start))
	effect := from("a", time.Minute)
	effect.Taint.Key = "network"
	uid := from("a", time.Minute)
	uid.UID = "another"
	copied := from("a", time.Second) // another pointer, and another time
	copied.Priority, copied.Taint.Value = 5, "full"
	for name, c := range map[string]struct {
		wants []Want
		stays bool
	}{
		"Same":         {wants: []Want{from("a", time.Minute)}, stays: true},
		"SameCopied":   {wants: []Want{copied}, stays: true},
		"AnotherToo":   {wants: []Want{from("a", time.Minute), from("b", time.Minute)}, stays: true},
		"Twice":        {wants: []Want{from("a", time.Minute), from("a", time.Minute)}, stays: true},
		"None":         {},
		"AnotherOnly":  {wants: []Want{from("b", time.Minute)}},
		"AddedAgain":   {wants: []Want{again}},
		"AnotherTaint": {wants: []Want{effect}},
		"AnotherUID":   {wants: []Want{uid}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, DefaultLimits, answering("a"), answering("b"))
			w.Set(template("web"), []Want{from("a", time.Minute)})
			if w.granted(template("web"), "a", "a") {
				t.Error("it is granted before a step")
			}
			w.pass(0)
			if !w.granted(template("web"), "a", "a") || w.granted(template("web"), "a", "another") || w.granted(template("web"), "b", "b") || w.granted(template("api"), "a", "a") {
				t.Error("not exactly the eviction is granted that was wanted")
			}
			w.Set(template("web"), c.wants)
			if got := w.granted(template("web"), "a", "a"); got != c.stays {
				t.Errorf("granted: %v, want %v", got, c.stays)
			}
			// After it left and came back, it needs another grant.
			if !c.stays {
				w.Set(template("web"), []Want{from("a", time.Minute)})
				if w.granted(template("web"), "a", "a") {
					t.Error("it is granted again at once")
				}
				log := w.pass(time.Minute)
				if !w.granted(template("web"), "a", "a") || !slices.Contains(log, "2:web") {
					t.Errorf("it is not granted again: %v", log)
				}
			}
		})
	}
}

// TestSeveralClusters: the evictions of one template from several clusters have a grant each.
func TestSeveralClusters(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"), answering("b"))
	w.Set(template("web"), []Want{from("a", time.Minute), from("b", time.Hour)})
	same(t, "grants", w.pass(time.Second), "0:web")
	if w.granted(template("web"), "a", "a") || !w.granted(template("web"), "b", "b") {
		t.Error("the eviction that was due first is not the first")
	}
	w.Set(template("web"), []Want{from("a", time.Minute)}) // it has left b
	same(t, "grants", w.pass(time.Minute), "2:web")
	w.Set(template("web"), nil)
	if len(w.entries) != 0 || len(w.ready) != 0 {
		t.Errorf("the queue still has %v and %v", w.entries, w.ready)
	}
}

// TestPause: nothing is granted while failover is paused. Templates whose reason to wait changes
// are decided on again, also those that have a grant and did not leave in time.
func TestPause(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"))
	for _, name := range []string{"x", "y", "z"} {
		w.Set(template(name), []Want{from("a", time.Minute)})
	}
	same(t, "requeued", w.pass(time.Second), "0:x")
	w.SetState(State{Known: true, Paused: true, By: "alice"})
	same(t, "requeued", w.pass(time.Minute), "1:x", "1:y", "1:z")
	if wait := w.waits("y", "a"); wait.Hold != HoldPaused || !strings.Contains(wait.Message, "alice") {
		t.Errorf("it waits: %+v", wait)
	}
	if !w.granted(template("x"), "a", "a") || w.granted(template("y"), "a", "a") {
		t.Error("the grants are others")
	}
	w.SetState(State{Known: true, Paused: true, By: "alice", At: start}) // nothing changes for them
	same(t, "requeued", w.pass(time.Minute))
	w.SetState(State{Known: true, By: "bob"})
	same(t, "requeued", w.pass(time.Minute), "121:x", "121:y", "121:z", "121:y", "123:z")
	if state := w.State(); state.By != "bob" || state.Paused {
		t.Errorf("state %+v", state)
	}
}

// TestStateUnknown: nothing is granted before the first call of SetState.
func TestStateUnknown(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"))
	w.SetState(State{})
	w.time = w.time.Add(overlap)
	w.Set(template("web"), []Want{from("a", time.Minute)})
	same(t, "requeued", w.pass(time.Hour))
	if wait := w.waits("web", "a"); wait.Hold != HoldUnknown {
		t.Errorf("it waits: %+v", wait)
	}
}

// TestHoldOfOneCluster: evictions from a cluster that settles, or because of a taint that is not
// confirmed, wait, and do not delay others.
func TestHoldOfOneCluster(t *testing.T) {
	settling := answering("a")
	settling.Since = start.Add(-10 * time.Second)
	w := newWorld(t, DefaultLimits, settling, answering("b"))
	w.SetState(State{Known: true, CountFrom: start.Add(-2 * time.Hour)})
	w.time = w.time.Add(overlap)
	old := from("b", time.Hour)
	old.Taint.TimeAdded = new(metav1.NewTime(start.Add(-3 * time.Hour)))
	w.Set(template("first"), []Want{from("a", time.Hour)})
	w.Set(template("second"), []Want{from("b", time.Minute)})
	w.Set(template("old"), []Want{old})
	same(t, "requeued", w.pass(10*time.Second), "1:second")
	if wait := w.waits("first", "a"); wait.Hold != HoldSettling || !wait.Until.Equal(start.Add(20*time.Second)) {
		t.Errorf("first waits: %+v", wait)
	}
	if wait := w.waits("old", "b"); wait.Hold != HoldUnconfirmed {
		t.Errorf("old waits: %+v", wait)
	}
	// When the cluster has settled, the reason changes, and the rate has a token.
	same(t, "requeued", w.pass(time.Minute), "20:first", "20:first")
	w.SetState(State{Known: true})
	same(t, "requeued", w.pass(time.Minute), "71:old", "71:old")
}

// TestGrantedInAClusterThatChanges: a template that has a grant, and may not leave while its
// cluster settles, is decided on again afterwards.
func TestGrantedInAClusterThatChanges(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"), answering("b"))
	w.Set(template("web"), []Want{from("a", time.Minute)})
	same(t, "requeued", w.pass(time.Second), "0:web")
	w.became(lostSince("a", w.time), answering("b"))
	same(t, "requeued", w.pass(time.Minute), "1:web", "31:web")
	if !w.granted(template("web"), "a", "a") {
		t.Error("the grant is lost")
	}
	// A cluster that has left, or joined again with another UID, evicts nothing.
	w.became(answering("b"))
	w.Set(template("api"), []Want{from("a", time.Minute)})
	w.pass(time.Minute)
	if status := w.Status(); w.granted(template("api"), "a", "a") || status.Waiting[HoldSettling] != 1 {
		t.Errorf("status %+v", status)
	}
}

// TestNotDue: an eviction is not granted before its time.
func TestNotDue(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"))
	w.Set(template("web"), []Want{from("a", -time.Minute)})
	w.Set(template("api"), []Want{from("a", -time.Hour)})
	same(t, "requeued", w.pass(2*time.Minute), "60:web", "60:web")
	w.Set(template("api"), []Want{from("a", -3*time.Minute)})
	same(t, "requeued", w.pass(2*time.Minute), "180:api", "180:api")
}

// TestChangedJustNow: a decision that may have asked for the reason before the reason changed is
// repeated once.
func TestChangedJustNow(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"))
	w.SetState(State{Known: true, Paused: true})
	w.time = w.time.Add(overlap - 1)
	w.Set(template("web"), []Want{from("a", time.Minute)})
	same(t, "requeued", w.took(), "web")
	w.Set(template("web"), []Want{from("a", time.Minute)})
	w.time = w.time.Add(1)
	w.Set(template("api"), []Want{from("a", time.Minute)})
	w.Set(template("api"), nil)
	same(t, "requeued", w.took())
}

// TestEvict: a template leaves a cluster if that eviction is granted, and nothing holds it now.
func TestEvict(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"), answering("b"))
	want := from("a", time.Minute)
	evict := func(name string, c *fleet.Cluster, taint corev1.Taint) Hold {
		return w.Evict(template(name), c, &taint).Hold
	}
	if hold := evict("web", answering("a"), want.Taint); hold != HoldRate {
		t.Errorf("before Set: %q", hold)
	}
	w.Set(template("web"), []Want{want})
	if hold := evict("web", answering("a"), want.Taint); hold != HoldRate {
		t.Errorf("before the grant: %q", hold)
	}
	w.pass(0)
	if wait := w.Evict(template("web"), answering("a"), &want.Taint); wait != (Wait{}) {
		t.Errorf("granted: %+v", wait)
	}
	again, renamed, copied := want.Taint, answering("a"), want.Taint
	again.TimeAdded = new(metav1.NewTime(start))
	renamed.UID = "another"
	copied.TimeAdded, copied.Value = new(metav1.NewTime(want.Taint.TimeAdded.Time)), "full"
	for name, c := range map[string]struct {
		template string
		cluster  *fleet.Cluster
		taint    corev1.Taint
		state    State
		want     Hold
	}{
		"Granted":         {template: "web", cluster: answering("a"), taint: copied},
		"AnotherTemplate": {template: "api", cluster: answering("a"), taint: want.Taint, want: HoldRate},
		"AnotherCluster":  {template: "web", cluster: answering("b"), taint: want.Taint, want: HoldRate},
		"AnotherUID":      {template: "web", cluster: renamed, taint: want.Taint, want: HoldRate},
		"AddedAgain":      {template: "web", cluster: answering("a"), taint: again, want: HoldRate},
		"Settling":        {template: "web", cluster: lostSince("a", start), taint: want.Taint, want: HoldSettling},
		"Unconfirmed":     {template: "web", cluster: answering("a"), taint: want.Taint, state: State{CountFrom: start}, want: HoldUnconfirmed},
		"Paused":          {template: "web", cluster: answering("a"), taint: want.Taint, state: State{Paused: true}, want: HoldPaused},
	} {
		t.Run(name, func(t *testing.T) {
			c.state.Known = true
			w.SetState(c.state)
			if hold := evict(c.template, c.cluster, c.taint); hold != c.want {
				t.Errorf("it waits: %q, want %q", hold, c.want)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"), answering("b"), lostSince("c", start.Add(-time.Second)))
	if diff := cmp.Diff(Status{Verdict: Verdict{Rate: 0.5}, State: State{Known: true}, Waiting: map[Hold]int{}, Clusters: map[string]int{}}, w.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	for i, want := range []Want{from("a", 2*time.Minute), from("a", time.Minute), from("b", time.Minute), from("c", time.Hour)} {
		w.Set(template(fmt.Sprint(i)), []Want{want})
	}
	w.pass(0)
	want := Status{
		Verdict: Verdict{Rate: 0.5}, State: State{Known: true},
		Waiting: map[Hold]int{HoldRate: 2, HoldSettling: 1}, Clusters: map[string]int{"a": 1, "b": 1, "c": 1},
	}
	if diff := cmp.Diff(want, w.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if n := testutil.CollectAndCount(collector{w.Queue}, "orrery_evictions_waiting"); n != len(measured) {
		t.Errorf("%d series, want %d", n, len(measured))
	}
	text := `
# HELP orrery_evictions_waiting Evictions that are due because of a taint and wait, by the reason why they wait.
# TYPE orrery_evictions_waiting gauge
orrery_evictions_waiting{reason="ManyAtOnce"} 0
orrery_evictions_waiting{reason="Paused"} 3
orrery_evictions_waiting{reason="RateLimited"} 0
orrery_evictions_waiting{reason="Settling"} 0
orrery_evictions_waiting{reason="Starting"} 0
orrery_evictions_waiting{reason="StateUnknown"} 0
orrery_evictions_waiting{reason="TurnedOff"} 0
orrery_evictions_waiting{reason="Unconfirmed"} 0
`
	w.SetState(State{Known: true, Paused: true})
	if err := testutil.CollectAndCompare(collector{w.Queue}, strings.NewReader(text)); err != nil {
		t.Error(err)
	}
}

// TestRestsWhenIdle: step does not ask for another call while nothing waits.
func TestRestsWhenIdle(t *testing.T) {
	w := newWorld(t, DefaultLimits, answering("a"))
	rests := func(when string) {
		t.Helper()
		if keys, next := w.step(); len(keys) != 0 || !next.IsZero() {
			t.Errorf("%s: requeued %v, next %s", when, keys, next)
		}
	}
	rests("new")
	w.FleetChanged()
	w.SetState(State{Known: true, Paused: true})
	select {
	case <-w.wake:
		t.Error("a change wakes an empty queue")
	default:
	}
	rests("changed")
	w.Set(template("web"), []Want{from("a", time.Minute)})
	w.pass(time.Hour)
	rests("paused")
	w.SetState(State{Known: true})
	w.pass(time.Hour)
	rests("granted")
	w.Set(template("web"), nil)
	rests("left")
}

// TestRun: each of many evictions is granted once, and the first come first, while templates want
// them, leave and return at the same time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		cluster := answering("a")
		cluster.Since = begin.Add(-time.Hour)
		snapshot := fleet.NewSnapshot(1, cluster)
		limits := DefaultLimits
		limits.Rate = 10
		q := NewQueue(limits, func() *fleet.Snapshot { return snapshot }, time.Now)
		want := from("a", 0)
		want.Due = begin.Add(-time.Minute)
		var mu sync.Mutex                  // one decision on a template at a time
		left := map[string]time.Duration{} // when each template left
		q.Requeue(func(keys ...binding.Template) {
			for _, k := range keys {
				go func() {
					mu.Lock()
					defer mu.Unlock()
					_, gone := left[k.Name]
					switch {
					case gone:
						q.Set(k, nil)
					case granted(q, k, "a", "a"):
						left[k.Name] = time.Since(begin)
						q.Set(k, nil)
					default:
						q.Set(k, []Want{want})
					}
				}()
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		synctest.Wait()
		q.SetState(State{Known: true})
		const n = 100
		for i := range n {
			go q.Set(template(fmt.Sprintf("t%02d", i)), []Want{want})
			go q.FleetChanged()
		}
		synctest.Wait()
		q.SetState(State{Known: true, Paused: true}) // all wait for another reason
		synctest.Wait()
		if len(left) != 1 {
			t.Errorf("%d left, want one", len(left))
		}
		time.Sleep(time.Minute) // of the fake clock
		q.SetState(State{Known: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(left) != n {
			t.Errorf("%d left, want %d", len(left), n)
		}
		late := time.Duration(0)
		for _, at := range left {
			late = max(late, at)
		}
		// A grant that is lost or given twice would take a tenth of a second of the fake clock.
		if most := time.Minute + 10*time.Second; late > most {
			t.Errorf("the last left after %s, want at most %s", late, most)
		}
		if status := q.Status(); len(status.Waiting) != 0 || len(q.entries) != 0 {
			t.Errorf("status %+v, entries %v", status, q.entries)
		}
		// The queue sleeps until a template wants something again.
		q.Set(template("last"), []Want{want})
		synctest.Wait()
		if left["last"] != 2*time.Minute {
			t.Errorf("the last one left after %s", left["last"])
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRunWakesWhenAHoldEnds: a hold that ends at a known time needs no signal.
func TestRunWakesWhenAHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		cluster := answering("a")
		cluster.Since = begin
		q := NewQueue(DefaultLimits, func() *fleet.Snapshot { return fleet.NewSnapshot(1, cluster) }, time.Now)
		requeued := make(chan time.Duration, 10)
		q.Requeue(func(...binding.Template) { requeued <- time.Since(begin) })
		q.SetState(State{Known: true})
		want := from("a", 0)
		want.Due = begin
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		q.Set(template("web"), []Want{want})
		if at := <-requeued; at != 0 { // the state was set just before
			t.Errorf("requeued after %s", at)
		}
		if at := <-requeued; at != DefaultLimits.Settling {
			t.Errorf("requeued after %s, want %s", at, DefaultLimits.Settling)
		}
		if !granted(q, template("web"), "a", "a") {
			t.Error("it is not granted")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
