// Package fleet has the state of all clusters at one moment. A Snapshot is immutable: the same
// decision on the same snapshot has the same result, so a decision can be repeated, explained
// and made for hypothetical changes. Cache keeps the current snapshot. It reports which
// clusters changed and how, and which namespaces may use other clusters than before.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/scheduler"
)

// Cluster is the known state of one cluster. Snapshots share the clusters that did not change.
type Cluster = scheduler.Cluster

// Snapshot is the known state of the fleet at one moment. It is immutable.
type Snapshot struct {
	version    uint64
	clusters   []*Cluster // by name
	identities *Identities
	access     *access.Set
}

// NewSnapshot returns a snapshot with the version and clusters, in any order and with different
// names. It keeps the clusters, which the caller must not change afterwards. It has no rules of
// access: every namespace may use every cluster.
func NewSnapshot(version uint64, clusters ...*Cluster) *Snapshot {
	clusters = slices.Clone(clusters)
	slices.SortFunc(clusters, func(a, b *Cluster) int { return strings.Compare(a.Name, b.Name) })
	return &Snapshot{version: version, clusters: clusters, identities: newIdentities(clusters)}
}

// WithAccess returns a copy of the snapshot, with the next version, in which the rules a say which
// clusters namespaces may use. A nil a means that every namespace may use every cluster.
func (s *Snapshot) WithAccess(a *access.Set) *Snapshot {
	next := *s
	next.version, next.access = s.version+1, a
	return &next
}

// Fence returns the fence of a namespace of the hub, which says which clusters the namespace may
// use; nil: all clusters. The namespace "", of cluster-scoped objects, has no fence.
func (s *Snapshot) Fence(namespace string) *access.Fence { return s.access.Fence(namespace) }

// Allowed reports whether a namespace of the hub may use a cluster. For a cluster that does not
// exist it is true only if the namespace may use every cluster.
func (s *Snapshot) Allowed(namespace, cluster string) bool {
	f := s.Fence(namespace)
	if f == nil {
		return true
	}
	c, ok := s.Cluster(cluster)
	return ok && f.Allows(c)
}

// Version returns the version of the snapshot. It increases with every change of the fleet during
// the life of the process. Snapshots of hypothetical changes have versions that are not unique.
func (s *Snapshot) Version() uint64 { return s.version }

// Clusters returns every cluster, sorted by name. The slice and the clusters are shared: do
// not change them.
func (s *Snapshot) Clusters() []*Cluster { return s.clusters }

// Cluster returns the cluster with the name, which the caller must not change. It returns nil
// and false if there is none.
func (s *Snapshot) Cluster(name string) (*Cluster, bool) {
	i, found := s.find(name)
	if !found {
		return nil, false
	}
	return s.clusters[i], true
}

// find returns the index of the cluster with the name and true. If there is no such cluster, it
// returns the index at which the cluster would be inserted, and false.
func (s *Snapshot) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.clusters, name, func(c *Cluster, name string) int { return strings.Compare(c.Name, name) })
}

// Identities returns the names and UIDs of the clusters.
func (s *Snapshot) Identities() *Identities { return s.identities }

// with returns the next snapshot, in which the cluster with the name has the state c. A nil c
// removes the cluster. It does not change s.
func (s *Snapshot) with(name string, c *Cluster) *Snapshot {
	next := &Snapshot{version: s.version + 1, clusters: slices.Clone(s.clusters), identities: s.identities, access: s.access}
	i, found := s.find(name)
	var before *Cluster
	if found {
		before = s.clusters[i]
	}
	switch {
	case c == nil && found:
		next.clusters = slices.Delete(next.clusters, i, i+1)
	case c != nil && found:
		next.clusters[i] = c
	case c != nil:
		next.clusters = slices.Insert(next.clusters, i, c)
	}
	if before == nil || c == nil || before.UID != c.UID {
		next.identities = newIdentities(next.clusters)
	}
	return next
}

// Supposing returns the snapshot after a hypothetical change of one cluster, and that change. It
// calls change with a copy of the state of the cluster. change may set its fields, but must not
// modify the maps and slices in it. If the snapshot does not have the cluster, Supposing returns s,
// an empty Change and false.
func (s *Snapshot) Supposing(name string, change func(*Cluster)) (*Snapshot, Change, bool) {
	before, ok := s.Cluster(name)
	if !ok {
		return s, Change{}, false
	}
	after := *before
	change(&after)
	what, _ := compare(before, &after)
	return s.with(name, &after), Change{Name: name, What: what, Before: before, After: &after}, true
}

// Without returns the snapshot with less free capacity: for each cluster in taken, less what the
// given replicas and objects take. Clusters that do not exist, or whose free capacity is unknown,
// are ignored.
func (s *Snapshot) Without(taken map[string][]scheduler.Taken) *Snapshot {
	capacities := map[string]scheduler.FreeCapacity{}
	for name, some := range taken {
		if c, ok := s.Cluster(name); ok {
			if free, known := c.FreeCapacity.(FreeCapacity); known {
				capacities[name] = free.Without(some)
			}
		}
	}
	return s.withCapacities(capacities)
}

// withCapacities returns the next snapshot, in which the named clusters have the given free
// capacities; nil: unknown. It returns s if none differs.
func (s *Snapshot) withCapacities(capacities map[string]scheduler.FreeCapacity) *Snapshot {
	next := *s
	next.version++
	changed := false
	for name, free := range capacities {
		i, found := s.find(name)
		if !found || s.clusters[i].FreeCapacity == free {
			continue
		}
		if !changed {
			next.clusters, changed = slices.Clone(s.clusters), true
		}
		after := *s.clusters[i]
		after.FreeCapacity = free
		next.clusters[i] = &after
	}
	if !changed {
		return s
	}
	return &next
}

// Identities has the names and UIDs of the clusters of a snapshot. It is immutable, and snapshots
// share it while no cluster joins or leaves. So a decision stores with one pointer which clusters
// existed when it was made.
type Identities struct{ uids map[string]types.UID }

func newIdentities(clusters []*Cluster) *Identities {
	uids := make(map[string]types.UID, len(clusters))
	for _, c := range clusters {
		uids[c.Name] = c.UID
	}
	return &Identities{uids: uids}
}

// Has reports whether the snapshot had a Cluster with that name and UID.
func (i *Identities) Has(name string, uid types.UID) bool {
	known, ok := i.uids[name]
	return ok && known == uid
}

// Aspect is a set of bits: each bit is one part of the state of a cluster, and is set if that part
// changed.
type Aspect uint8

// The bits of an Aspect, as Change.What has them.
const (
	// Membership means that the cluster joined, began to leave, left, or was replaced by one with
	// another UID.
	Membership Aspect = 1 << iota
	// Labels means that the labels, the provider, the region or the zones changed.
	Labels
	// Taints means that the taints of the Cluster changed, or its Bounds: the namespaces in which the
	// profile of the cluster's agent allows the hub to place objects.
	Taints
	// Reachability means that the cluster began or ceased to answer, or was found not to answer.
	Reachability
	// APIs means that the APIs changed that the cluster serves.
	APIs
	// Capacity means that the free capacity became known or unknown. Changes of the amount are
	// frequent and are not reported.
	Capacity
)

// Change is a change of the state of one cluster. What has a bit for each part that changed.
type Change struct {
	Name          string
	What          Aspect
	Before, After *Cluster // nil Before: the cluster is new; nil After: it is gone
}

// compare returns the aspects in which two states of a cluster differ. A nil state means that the
// fleet does not have the cluster. same is true if nothing at all differs. Without an aspect the
// states can still differ, for example in the amount of free capacity.
func compare(before, after *Cluster) (what Aspect, same bool) {
	switch {
	case before == nil && after == nil:
		return 0, true
	case before == nil || after == nil || before.UID != after.UID:
		return Membership | Labels | Taints | Reachability | APIs | Capacity, false
	}
	set := func(aspect Aspect, differs bool) {
		if differs {
			what |= aspect
		}
	}
	set(Membership, before.Leaving != after.Leaving)
	set(Labels, !maps.Equal(before.Labels, after.Labels) || before.Provider != after.Provider ||
		before.Region != after.Region || !slices.Equal(before.Zones, after.Zones))
	set(Taints, !slices.EqualFunc(before.Taints, after.Taints, func(a, b corev1.Taint) bool {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Effect, b.Effect)) == 0 && a.TimeAdded.Equal(b.TimeAdded)
	}) || !before.Bounds.Equal(after.Bounds))
	set(Reachability, before.Reachable != after.Reachable || before.Lost != after.Lost || before.Probed != after.Probed)
	set(APIs, before.APIs != after.APIs)
	set(Capacity, (before.FreeCapacity == nil) != (after.FreeCapacity == nil))
	return what, what == 0 && before.Joined == after.Joined && before.Expected == after.Expected && before.FreeCapacity == after.FreeCapacity &&
		before.Since.Equal(after.Since)
}
