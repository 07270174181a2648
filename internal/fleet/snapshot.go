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

// NewSnapshot returns a snapshot of the clusters, which the caller must not change afterwards.
func NewSnapshot(version uint64, clusters ...*Cluster) *Snapshot {
	clusters = slices.Clone(clusters)
	slices.SortFunc(clusters, func(a, b *Cluster) int { return strings.Compare(a.Name, b.Name) })
	return &Snapshot{version: version, clusters: clusters, identities: newIdentities(clusters)}
}

// WithAccess returns the snapshot with other rules for the clusters that namespaces may use,
// and the next version. A snapshot without rules has no fences.
func (s *Snapshot) WithAccess(a *access.Set) *Snapshot {
	next := *s
	next.version, next.access = s.version+1, a
	return &next
}

// Fence returns the fence of a namespace of the hub; nil if the namespace may use every
// cluster.
func (s *Snapshot) Fence(namespace string) *access.Fence { return s.access.Fence(namespace) }

// Allowed reports whether a namespace of the hub may use a cluster.
func (s *Snapshot) Allowed(namespace, cluster string) bool {
	f := s.Fence(namespace)
	if f == nil {
		return true
	}
	c, ok := s.Cluster(cluster)
	return ok && f.Allows(c)
}

// Version increases with every change of the fleet during the life of the process.
func (s *Snapshot) Version() uint64 { return s.version }

// Clusters returns every cluster, by name. The slice is shared: do not change it.
func (s *Snapshot) Clusters() []*Cluster { return s.clusters }

// Cluster returns the cluster with the name; false if there is none.
func (s *Snapshot) Cluster(name string) (*Cluster, bool) {
	i, found := s.find(name)
	if !found {
		return nil, false
	}
	return s.clusters[i], true
}

func (s *Snapshot) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.clusters, name, func(c *Cluster, name string) int { return strings.Compare(c.Name, name) })
}

// Identities returns the names and UIDs of the clusters.
func (s *Snapshot) Identities() *Identities { return s.identities }

// with returns the next snapshot, with c as the state of the cluster; nil: the cluster is gone.
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

// Supposing returns the snapshot after a hypothetical change of one of its clusters, and that
// change. It returns false if the snapshot has no such cluster.
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

// Without returns the snapshot with less free capacity in some clusters, by name.
func (s *Snapshot) Without(taken map[string][]scheduler.Taken) *Snapshot {
	rooms := map[string]scheduler.Room{}
	for name, some := range taken {
		if c, ok := s.Cluster(name); ok {
			if room, known := c.Room.(Room); known {
				rooms[name] = room.Without(some)
			}
		}
	}
	return s.withRooms(rooms)
}

// withRooms returns the next snapshot, with other free capacities, by cluster. It returns the
// same snapshot if none differs.
func (s *Snapshot) withRooms(rooms map[string]scheduler.Room) *Snapshot {
	next := *s
	next.version++
	changed := false
	for name, room := range rooms {
		i, found := s.find(name)
		if !found || s.clusters[i].Room == room {
			continue
		}
		if !changed {
			next.clusters, changed = slices.Clone(s.clusters), true
		}
		after := *s.clusters[i]
		after.Room = room
		next.clusters[i] = &after
	}
	if !changed {
		return s
	}
	return &next
}

// Identities has the names and UIDs of a fleet's clusters. It is immutable, and snapshots share
// it while no cluster joins or leaves. So a decision remembers the clusters that it knew as one
// pointer.
type Identities struct{ uids map[string]types.UID }

func newIdentities(clusters []*Cluster) *Identities {
	uids := make(map[string]types.UID, len(clusters))
	for _, c := range clusters {
		uids[c.Name] = c.UID
	}
	return &Identities{uids: uids}
}

// Has reports whether the fleet had a Cluster with that name and UID.
func (i *Identities) Has(name string, uid types.UID) bool {
	known, ok := i.uids[name]
	return ok && known == uid
}

// Aspect is a set of bits that says what changed in a cluster.
type Aspect uint8

// The aspects of a cluster.
const (
	// Membership: the cluster joined, began to leave, left, or joined again.
	Membership Aspect = 1 << iota
	// Labels, or the provider, region or zones.
	Labels
	// Taints of the Cluster, or the bounds for objects in it.
	Taints
	// Reachability: the cluster began or ceased to answer.
	Reachability
	// APIs that the cluster serves.
	APIs
	// Capacity: the free capacity became known or unknown. Changes of the amount are frequent
	// and are not reported.
	Capacity
)

// Change is a change of one cluster.
type Change struct {
	Name          string
	What          Aspect
	Before, After *Cluster // nil Before: the cluster is new; nil After: it is gone
}

// compare returns the aspects in which two states of a cluster differ. same is true if nothing
// at all differs. nil: there is no such cluster.
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
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Effect, b.Effect)) == 0
	}) || !before.Bounds.Equal(after.Bounds))
	set(Reachability, before.Reachable != after.Reachable)
	set(APIs, before.APIs != after.APIs)
	set(Capacity, (before.Room == nil) != (after.Room == nil))
	return what, what == 0 && before.Joined == after.Joined && before.Expected == after.Expected && before.Room == after.Room
}
