package failover

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

const (
	// longestSleep bounds how long Queue.Run sleeps while evictions wait for a very low rate.
	longestSleep = time.Hour
	// overlap is how long before Queue.Set the decision that calls it may have asked why its evictions
	// wait.
	overlap = time.Second
)

// Want is an eviction that is due: a template has to leave a cluster.
type Want struct {
	Cluster string
	UID     types.UID // of the Cluster
	// Taint has the effect NoExecute, and requires the eviction since Due.
	Taint corev1.Taint
	Due   time.Time
	// Priority is that of the template. Higher priorities come first.
	Priority int32
}

// same reports whether both are the same eviction, so that a grant of one is a grant of the other.
// A taint that was removed and added again has another time, so its eviction is another one.
func (w *Want) same(other *Want) bool {
	return w.UID == other.UID && w.Taint.MatchTaint(&other.Taint) && w.Taint.TimeAdded.Equal(other.Taint.TimeAdded)
}

// Status is the state of a Queue at one moment.
type Status struct {
	Verdict Verdict
	State   State
	// Waiting is the number of evictions in the queue that have no grant, by the reason why they wait.
	// Clusters is their number by cluster.
	Waiting  map[Hold]int
	Clusters map[string]int
}

// Queue grants evictions that are due, at the rate that the limits allow: those of the highest
// priority first, and of equal priority those that have been due for longest. A grant stays until
// the template no longer wants that eviction. Queue is safe for concurrent use.
type Queue struct {
	limits   Limits
	snapshot func() *fleet.Snapshot
	now      func() time.Time
	wake     chan struct{} // has a value if step must be called again

	mu      sync.Mutex
	requeue func(...binding.Template)
	state   State
	entries map[binding.Template]map[string]*entry // by template and cluster
	ready   order                                  // wait only for the fleet and the rate
	limiter *rate.Limiter
	verdict Verdict   // at the last call of judge
	until   time.Time // when the verdict, or the wait of an entry, may change by itself; zero: never
	stale   bool      // the fleet or the state changed after the last call of judge
	changed time.Time // when the fleet or the state changed last
}

// entry is an eviction in a Queue.
type entry struct {
	template binding.Template
	want     Want
	granted  bool
	// reported is the wait with which the template was decided on last, as far as the queue knows. If
	// the wait changes, the template is decided on again.
	reported Wait
	index    int // in Queue.ready; -1: it is not there
}

// NewQueue returns an empty queue. snapshot returns the present state of the fleet, and now the
// present time. snapshot is called with the lock of the queue, so it must not call the queue. Until
// SetState is called, nothing is granted.
func NewQueue(limits Limits, snapshot func() *fleet.Snapshot, now func() time.Time) *Queue {
	return &Queue{
		limits: limits, snapshot: snapshot, now: now, wake: make(chan struct{}, 1),
		entries: map[binding.Template]map[string]*entry{}, limiter: rate.NewLimiter(rate.Limit(limits.Rate), 1),
	}
}

// Requeue sets the function that is called with the templates to decide on again: those that got a
// grant, and those whose evictions wait for another reason than before. It is called without locks,
// by Run and Set. Call Requeue once, before Run.
func (q *Queue) Requeue(f func(...binding.Template)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.requeue = f
}

// Set replaces all wants of the template k; nil: it wants no eviction. Grants of evictions that k
// no longer wants end. A template that wants an eviction again needs another grant. wants has at
// most one eviction from each cluster. Call Set after each decision on k, and when k is gone.
func (q *Queue) Set(k binding.Template, wants []Want) {
	if again := q.set(k, wants); again {
		q.decide(k)
	}
}

// set is Set without the call of the requeue function. It reports whether the template k must be
// decided on again, because the reason why an eviction waits may have changed since its decision.
func (q *Queue) set(k binding.Template, wants []Want) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.entries[k]
	if len(before) == 0 && len(wants) == 0 {
		return false
	}
	after := make(map[string]*entry, len(wants))
	var fresh []*entry
	for i := range wants {
		w := wants[i]
		e := before[w.Cluster]
		switch {
		case after[w.Cluster] != nil:
			continue // a second eviction from the cluster is the same
		case e == nil || !e.want.same(&w):
			e = &entry{template: k, want: w, index: -1}
			fresh = append(fresh, e)
		default:
			e.want = w // the priority may have changed, or the time
			if e.index >= 0 {
				heap.Fix(&q.ready, e.index)
			}
			if w.Due.After(q.now()) {
				q.stale = true
				q.signal()
			}
		}
		after[w.Cluster] = e
	}
	for cluster, e := range before {
		if after[cluster] != e {
			q.drop(e)
		}
	}
	if len(after) == 0 {
		delete(q.entries, k)
		return false
	}
	q.entries[k] = after
	if len(fresh) == 0 {
		return false
	}
	now, s := q.now(), q.snapshot()
	verdict := Judge(s, q.state, q.limits, now)
	for _, e := range fresh {
		hold := q.hold(s, &e.want, now)
		e.reported = q.wait(verdict, hold, e.granted)
		q.until = earlier(q.until, hold.Until)
		if hold.Hold == "" {
			heap.Push(&q.ready, e)
		}
	}
	// step on an empty queue forgets when the verdict changes by itself.
	q.until = earlier(q.until, verdict.Wait.Until)
	q.stale = q.stale || verdict != q.verdict
	q.signal()
	return now.Sub(q.changed) < overlap
}

// drop removes an entry from the entries that are ready. The caller holds q.mu.
func (q *Queue) drop(e *entry) {
	if e.index >= 0 {
		heap.Remove(&q.ready, e.index)
	}
}

// Evict returns why the template k does not leave the cluster c now because of the taint, which is
// due; the zero Wait: it leaves. It judges again, because a hold may have begun after the grant.
// The template need not have called Set before.
func (q *Queue) Evict(k binding.Template, c *fleet.Cluster, taint *corev1.Taint) Wait {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	granted := false
	if e := q.entries[k][c.Name]; e != nil {
		granted = e.granted && e.want.same(&Want{UID: c.UID, Taint: *taint})
	}
	return q.wait(Judge(q.snapshot(), q.state, q.limits, now), q.limits.Cluster(c, taint, q.state, now), granted)
}

// hold returns why an eviction waits, other than for the whole fleet and for the rate; the zero
// Wait if it does not. The caller holds q.mu.
func (q *Queue) hold(s *fleet.Snapshot, w *Want, now time.Time) Wait {
	c, ok := s.Cluster(w.Cluster)
	switch {
	case !ok || c.UID != w.UID:
		return Wait{Hold: HoldSettling, Message: "the cluster has just joined or left the fleet"}
	case w.Due.After(now):
		return Wait{Hold: HoldRate, Message: "the toleration of the taint is not over", Until: w.Due}
	}
	return q.limits.Cluster(c, &w.Taint, q.state, now)
}

// wait returns why an eviction with that hold waits; the zero Wait if it is granted and nothing
// holds it.
func (q *Queue) wait(v Verdict, hold Wait, granted bool) Wait {
	switch {
	case v.Wait.Hold != "":
		return v.Wait
	case hold.Hold != "" || granted:
		return hold
	}
	return q.limits.limited(v)
}

// SetState replaces the stored state of failover. The evictions that wait are judged again.
func (q *Queue) SetState(state State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state = state
	q.change()
}

// State returns the stored state of failover, as SetState set it last.
func (q *Queue) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

// FleetChanged makes the queue judge again whether evictions may begin. Call it after each change
// of the membership, the reachability or the taints of a cluster.
func (q *Queue) FleetChanged() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.change()
}

// change records that the fleet or the state changed. The caller holds q.mu.
func (q *Queue) change() {
	q.stale, q.changed = true, q.now()
	if len(q.entries) > 0 {
		q.signal()
	}
}

// signal makes Run call step again.
func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // the pending signal covers this one
	}
}

// Status returns the present state of the queue.
func (q *Queue) Status() Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, s := q.now(), q.snapshot()
	status := Status{
		Verdict: Judge(s, q.state, q.limits, now), State: q.state,
		Waiting: map[Hold]int{}, Clusters: map[string]int{},
	}
	for _, entries := range q.entries {
		for cluster, e := range entries {
			if !e.granted {
				status.Waiting[q.wait(status.Verdict, q.hold(s, &e.want, now), false).Hold]++
				status.Clusters[cluster]++
			}
		}
	}
	return status
}

// Run grants evictions until ctx ends, and returns nil. It sleeps while nothing waits. It also
// serves the metric of the queue. Call it once.
func (q *Queue) Run(ctx context.Context) error {
	defer q.measure(logr.FromContextOrDiscard(ctx).WithName("failover"))()
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	for {
		keys, next := q.step()
		q.decide(keys...)
		timer.Stop()
		var due <-chan time.Time // nil: only a signal wakes
		if !next.IsZero() {
			timer.Reset(next.Sub(q.now()))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-q.wake:
		case <-due:
		}
	}
}

// decide calls the requeue function with templates, if there are any. The caller must not hold
// q.mu.
func (q *Queue) decide(keys ...binding.Template) {
	q.mu.Lock()
	requeue := q.requeue
	q.mu.Unlock()
	if len(keys) > 0 && requeue != nil {
		requeue(keys...)
	}
}

// step judges again, if that is necessary, and grants one eviction if the rate allows one now. It
// returns the templates to decide on again, and when to call step again even without a signal;
// zero: never.
func (q *Queue) step() (keys []binding.Template, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 {
		q.until = time.Time{}
		return nil, time.Time{}
	}
	now, s := q.now(), q.snapshot()
	verdict := Judge(s, q.state, q.limits, now)
	if q.stale || verdict != q.verdict || !q.until.IsZero() && !q.until.After(now) {
		keys = q.judge(s, verdict, now)
	}
	if verdict.Wait.Hold != "" || len(q.ready) == 0 {
		return keys, q.until
	}
	q.limiter.SetLimitAt(now, rate.Limit(verdict.Rate))
	if q.limiter.AllowN(now, 1) {
		e, _ := heap.Pop(&q.ready).(*entry)
		e.granted, e.reported = true, Wait{}
		keys = append(keys, e.template)
	}
	if len(q.ready) == 0 {
		return keys, q.until
	}
	return keys, earlier(q.until, now.Add(pause(1-q.limiter.TokensAt(now), verdict.Rate)))
}

// judge finds out for each entry, by the snapshot and the verdict on it, whether it is ready, and
// why it waits. It returns the templates whose evictions wait for another reason than before, or no
// longer, sorted. The caller holds q.mu.
func (q *Queue) judge(s *fleet.Snapshot, verdict Verdict, now time.Time) (changed []binding.Template) {
	q.verdict, q.stale, q.until = verdict, false, verdict.Wait.Until
	q.ready = q.ready[:0]
	for k, entries := range q.entries {
		again := false
		for _, e := range entries {
			hold := q.hold(s, &e.want, now)
			q.until = earlier(q.until, hold.Until)
			wait := q.wait(verdict, hold, e.granted)
			again = again || wait.Hold != e.reported.Hold || wait.Message != e.reported.Message
			e.reported, e.index = wait, -1
			if hold.Hold == "" && !e.granted {
				e.index = len(q.ready)
				q.ready = append(q.ready, e)
			}
		}
		if again {
			changed = append(changed, k)
		}
	}
	heap.Init(&q.ready)
	slices.SortFunc(changed, compareTemplates)
	return changed
}

// pause returns how long it takes to add so many tokens, if perSecond of them, more than 0, are
// added in a second. It is at most longestSleep, and at least a nanosecond.
func pause(tokens, perSecond float64) time.Duration {
	seconds := min(tokens/perSecond, longestSleep.Seconds())
	return max(time.Duration(math.Ceil(seconds*float64(time.Second))), 1)
}

// earlier returns the earlier one of two times; a zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// compareTemplates orders templates by namespace and name, and then by kind.
func compareTemplates(a, b binding.Template) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group))
}

// order is a heap of entries. Its first element is the one that gets the next grant.
type order []*entry //nolint:recvcheck // heap.Interface has methods of both kinds

// Len implements heap.Interface.
func (o order) Len() int { return len(o) }

// Less implements heap.Interface: a higher priority comes first, then an earlier time.
func (o order) Less(i, j int) bool {
	a, b := o[i], o[j]
	return cmp.Or(
		cmp.Compare(b.want.Priority, a.want.Priority), a.want.Due.Compare(b.want.Due),
		compareTemplates(a.template, b.template), cmp.Compare(a.want.Cluster, b.want.Cluster),
	) < 0
}

// Swap implements heap.Interface: it exchanges two elements, and updates their index.
func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].index, o[j].index = i, j
}

// Push implements heap.Interface: it appends an *entry at the end.
func (o *order) Push(x any) {
	e, _ := x.(*entry)
	e.index = len(*o)
	*o = append(*o, e)
}

// Pop implements heap.Interface: it removes and returns the last element.
func (o *order) Pop() any {
	last := len(*o) - 1
	e := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	e.index = -1
	return e
}
