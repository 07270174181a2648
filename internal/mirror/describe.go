package mirror

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// reconnectGrace is how long a type may be without a watch before its data counts as stale.
// Watches end regularly and are opened again.
const reconnectGrace = 10 * time.Second

// follows records that a watch begins or ends. While a watch is open the type is current, even if
// it has not changed for long.
func (t *table) follows(yes bool) {
	t.cluster.mu.Lock()
	defer t.cluster.mu.Unlock()
	if !yes {
		t.seen = t.asOf()
	} else {
		t.seen = time.Now()
	}
	t.following = yes
}

// asOf returns the last time at which the data of the type was known to be current. While a watch
// is open, this is when the cluster was last reached, which may be now. If the API group does not
// answer, the open watch does not count. For a type that was never read, it is the time at which
// the cluster became reachable, or unreachable. The caller holds the cluster's lock.
func (t *table) asOf() time.Time {
	c := t.cluster
	reached := c.lastReached()
	switch {
	case t.seen.IsZero() && c.gate.isOpen():
		return c.since
	case t.seen.IsZero(), t.following && !t.away && reached.After(t.seen):
		return reached
	default:
		return t.seen
	}
}

// lag returns the age of the type's data, and why it is not current; 0: it is current. The caller
// holds the cluster's lock.
func (t *table) lag(now time.Time) (lag time.Duration, why string) {
	c := t.cluster
	age := max(now.Sub(t.asOf()), time.Millisecond)
	switch {
	case !c.source.Reachable():
		return age, "the cluster is unreachable"
	case t.away:
		return age, "its API group does not answer"
	case t.following || age < reconnectGrace:
		return 0, ""
	case t.problem != nil:
		return age, t.problem.Error()
	default:
		return age, "it is not watched at present"
	}
}

// lastReached returns when the cluster was last reachable, as far as the hub knows; now, while it
// is reachable. The caller holds the cluster's lock.
func (c *cluster) lastReached() time.Time {
	if c.gate.isOpen() {
		return time.Now()
	}
	since := c.since
	for _, cond := range c.source.Cluster().Status.Conditions {
		if cond.Type == clusterv1alpha1.ConditionReachable && cond.Status != metav1.ConditionTrue && cond.LastTransitionTime.Time.Before(since) {
			since = cond.LastTransitionTime.Time // it was unreachable before this process started
		}
	}
	return since
}

// reading reports whether the type can be listed completely, but was not yet. The caller holds
// the cluster's lock.
func (t *table) reading() bool { return !t.synced && !t.away && t.cluster.source.Reachable() }

// Freshness reports whether the data of a type in a cluster is stale, and when it was last
// current. Stale rows stay in the mirror.
func (m *Mirror) Freshness(cluster string, gr schema.GroupResource) (seen time.Time, stale bool) {
	if m.cluster(cluster) == nil {
		return m.Stale(cluster) // the store may have its types
	}
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil {
		return time.Time{}, false
	}
	now := time.Now()
	lag, _ := t.lag(now)
	return now.Add(-lag), lag > 0 && !t.reading()
}

// Partial reports whether some objects of a type in a cluster may not be mirrored.
func (m *Mirror) Partial(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.filter.narrow()
}

// States of the mirrored data of a cluster.
const (
	StateSynced  = "Synced"  // all types are current
	StateReading = "Reading" // some types were not completely read yet
	StateBehind  = "Behind"  // some types get no changes at present
	StateUnknown = "Unknown" // the cluster is unreachable, or was never read
)

// State returns how current the mirrored data of a cluster is, and the time of its oldest data
// unless all is current. since is zero for StateSynced and StateReading. For a cluster that is
// not mirrored yet, since is the start of the mirror.
func (m *Mirror) State(name string) (state string, since time.Time) {
	c := m.cluster(name)
	if c == nil {
		since, _ = m.Stale(name)
		return StateUnknown, since
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.source.Reachable() {
		return StateUnknown, c.lastReached()
	}
	state = StateSynced
	if len(c.tables) == 0 {
		state = StateReading
	}
	for _, t := range c.tables {
		lag, _ := t.lag(now)
		switch {
		case t.reading() && state == StateSynced:
			state = StateReading
		case !t.reading() && lag > 0:
			state = StateBehind
			if seen := now.Add(-lag); since.IsZero() || seen.Before(since) {
				since = seen
			}
		}
	}
	return state, since
}

// Describe returns all types of a cluster: how old the mirrored ones are, and why others are not
// mirrored; false: the cluster is not mirrored.
func (m *Mirror) Describe(name string) (d fleetv1alpha1.ClusterMirror, found bool) {
	c := m.cluster(name)
	if c == nil {
		return d, false
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	d = fleetv1alpha1.ClusterMirror{
		TypeMeta: metav1.TypeMeta{Kind: "ClusterMirror", APIVersion: fleetv1alpha1.GroupVersion.String()},
		Cluster:  name, Reachable: c.source.Reachable(), Types: []fleetv1alpha1.MirroredType{}, Problems: c.decided.problems,
	}
	reasons := map[schema.GroupResource]string{}
	for _, decided := range c.decided.types {
		gr := resourceOf(decided.api)
		if !decided.mirrored {
			d.Refused = append(d.Refused, fleetv1alpha1.RefusedType{Group: gr.Group, Resource: gr.Resource, Reason: decided.reason})
			continue
		}
		reasons[gr] = decided.reason
	}
	for gr, t := range c.tables {
		one := t.describe(now)
		one.Reason = reasons[gr]
		d.LagSeconds = max(d.LagSeconds, one.LagSeconds)
		d.Types = append(d.Types, one)
	}
	slices.SortFunc(d.Types, func(a, b fleetv1alpha1.MirroredType) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	slices.SortFunc(d.Refused, func(a, b fleetv1alpha1.RefusedType) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	return d, true
}

// describe returns the state of the type. The caller holds the cluster's lock.
func (t *table) describe(now time.Time) fleetv1alpha1.MirroredType {
	gvr := t.api.GroupVersionResource()
	one := fleetv1alpha1.MirroredType{
		Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource, Objects: t.filter.String(), State: fleetv1alpha1.MirrorCurrent,
	}
	if data := dataOf(t.data); data != "" {
		one.Objects = cmp.Or(one.Objects, "all") + ", with data of " + data
	}
	if t.life > 0 {
		one.Life = t.life.String()
	}
	lag, why := t.lag(now)
	one.LagSeconds, one.Message = int64((lag+time.Second-1)/time.Second), why
	switch {
	case t.reading():
		one.State = fleetv1alpha1.MirrorReading
	case lag > 0:
		one.State = fleetv1alpha1.MirrorStale
	}
	if !t.synced && t.problem != nil && why == "" {
		one.Message = t.problem.Error()
	}
	if !t.seen.IsZero() {
		one.LastSeen = &metav1.Time{Time: t.asOf()}
	}
	return one
}
