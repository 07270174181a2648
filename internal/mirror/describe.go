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

// reconnectGrace is how long a type may be without a watch before its data counts as stale. Watches
// end at regular times and are opened again.
const reconnectGrace = 10 * time.Second

// follows records that the watch of the table's type is now open (yes), or has ended. While a watch
// is open the data is current, even if no object has changed for long. It takes the cluster's lock.
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

// asOf returns the last time at which the data of the table's type was known to be current. While a
// watch is open, this is when the cluster was last reached, which may be now. A watch does not
// count while the API group does not answer. For a type that was never read, it is the time at
// which the cluster became reachable, or unreachable. The caller holds the cluster's lock.
func (t *table) asOf() time.Time {
	c := t.cluster
	reached := c.lastReached()
	switch {
	case t.seen.IsZero() && c.barrier.isOpen():
		return c.since
	case t.seen.IsZero(), t.following && !t.away && reached.After(t.seen):
		return reached
	default:
		return t.seen
	}
}

// lag returns the age of the data of the table's type at the time now, and a message why it is not
// current. It returns 0 and "" if the data is current, and if the type had no watch for less than
// reconnectGrace. Otherwise lag is at least a millisecond. The caller holds the cluster's lock.
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

// lastReached returns when the cluster was last reachable, as far as the hub knows; now, if it is
// reachable. Check everReached first: for a cluster that was never reached, the result has no
// meaning. The caller holds the cluster's lock.
func (c *cluster) lastReached() time.Time {
	if c.barrier.isOpen() {
		return time.Now()
	}
	since := c.since
	for _, cond := range c.source.Cluster().Status.Conditions {
		if cond.Type == clusterv1alpha1.ConditionReachable && cond.Status != metav1.ConditionTrue && cond.LastTransitionTime.Time.Before(since) {
			since = cond.LastTransitionTime.Time // the cluster was unreachable before this process started
		}
	}
	return since
}

// everReached reports whether the hub ever reached the cluster, in this process or an earlier one.
// The ID in the status of the Cluster, and stored types of the cluster, show the latter. The caller
// holds the cluster's lock.
func (c *cluster) everReached() bool {
	return c.answered || len(c.tables) > 0 || c.source.Cluster().Status.ID != ""
}

// reading reports whether the table's type is being read for the first time: it is not listed yet,
// and the cluster and the API group answer. The caller holds the cluster's lock.
func (t *table) reading() bool { return !t.synced && !t.away && t.cluster.source.Reachable() }

// Freshness returns when the data of a type in a cluster was last current (seen), and whether it is
// stale. The mirror keeps stale rows. A type that is being read for the first time is not stale.
// For a type that is not mirrored, seen is zero and stale is false. A cluster that only the store
// knows, because it did not join yet since the start, is stale since the start of the mirror.
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

// Partial reports whether the mirror may lack some objects of a type in a cluster: the settings
// select only some namespaces or labels, or the hub may read only some namespaces. It is false for
// a type that is not mirrored at all.
func (m *Mirror) Partial(cluster string, gr schema.GroupResource) bool {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	return t != nil && t.filter.narrow()
}

// The states of the mirrored data of a cluster, as Mirror.State returns them.
const (
	StateSynced  = "Synced"  // all types are current
	StateReading = "Reading" // some types were not completely read yet
	StateBehind  = "Behind"  // some types get no changes at present
	StateUnknown = "Unknown" // the cluster is unreachable, or was never read
)

// State returns how current the mirrored data of a cluster is: one of the constants above. since is
// the time of the oldest data. It is zero for StateSynced and StateReading, and for a cluster that
// the hub never reached. For a cluster that only the store knows, because it did not join yet since
// the start, since is the start of the mirror.
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
		if !c.everReached() {
			return StateUnknown, time.Time{}
		}
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

// Describe returns all types that a cluster serves or that are mirrored of it, sorted by group and
// resource. Types has the mirrored ones with their age, Refused the others with the reason. found
// is false if the cluster is not mirrored. The caller must not change the slice Problems.
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

// describe returns the description of the table's type for Describe at the time now, without
// Reason. The caller holds the cluster's lock.
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
