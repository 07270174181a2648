package scheduler

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/presence"
)

// Cluster is what the scheduler knows of a cluster. It does not change once it was handed
// out, so that decisions and snapshots share it.
type Cluster struct {
	Name string
	// UID of the Cluster object: a cluster that joins again under the name has another.
	UID              types.UID
	Labels           labels.Set
	Provider, Region string
	Zones            []string
	Taints           []corev1.Taint

	Leaving bool // it is being removed from the fleet
	Joined  bool // its identity was recorded: it answered at least once
	// Expected is true when the cluster was ready when its status was last written, perhaps
	// by an earlier process.
	Expected  bool
	Reachable bool // it answers
	// APIs says which kinds it serves; nil while nothing is known.
	APIs APIs
	// Bounds are where alone the hub may place objects in it; nil: everywhere.
	Bounds *Bounds
	// Room is its free capacity; nil while that is not known. Only dynamic weights look at it.
	Room Room
}

// Bounds are what an agent of a cluster lets the hub do.
type Bounds struct {
	// Profile that says so.
	Profile string
	// Namespaces in which objects may be placed; empty: in none.
	Namespaces []string
}

// takes says whether objects of a namespace, "" for those that have none, may be placed.
func (b *Bounds) takes(namespace string) bool {
	return b == nil || slices.Contains(b.Namespaces, namespace)
}

// Equal says whether two are the same.
func (b *Bounds) Equal(other *Bounds) bool {
	if b == nil || other == nil {
		return b == other
	}
	return b.Profile == other.Profile && slices.Equal(b.Namespaces, other.Namespaces)
}

// String says what is not let, and the way out.
func (b *Bounds) String() string {
	const wayOut = "; give it another with spec.agent of the Cluster and orrery cluster rejoin"
	if len(b.Namespaces) == 0 {
		return "its agent's profile " + b.Profile + " lets the hub place nothing there" + wayOut
	}
	return "its agent's profile " + b.Profile + " lets the hub place only objects of the namespaces " + strings.Join(b.Namespaces, ", ") + wayOut
}

// APIs says which kinds a cluster serves.
type APIs interface {
	Serves(kind schema.GroupVersionKind) presence.Presence
}

// Room is the free capacity of a cluster at one moment.
type Room interface {
	// Fits counts how many more replicas with a claim fit; there says that the object is in the
	// cluster already. quota is the ResourceQuota, NAMESPACE/NAME, that lets in fewer than the nodes take; empty: none does.
	Fits(claim *Claim, there bool) (replicas int64, quota string)
	// Sets counts how often all replicas of some components, which are of one namespace, fit together. Where they do not fit once, and it is not for a quota,
	// lacking is the name of the first component for which nothing is left.
	Sets(components []Component, there bool) (sets int64, lacking, quota string)
}

// Component is one of several kinds of pods of an object: so many replicas that claim the same.
type Component struct {
	Name     string
	Claim    *Claim
	Replicas int64
}

// lack is what keeps more from having room in a cluster; the zero lack: its nodes.
type lack struct {
	quota     string // that lets in no more
	component string // for which nothing is left
}

func (l lack) compare(other lack) int {
	return cmp.Or(strings.Compare(l.quota, other.quota), strings.Compare(l.component, other.component))
}

// Serves says whether the cluster serves a kind.
func (c *Cluster) Serves(kind schema.GroupVersionKind) presence.Presence {
	if c.APIs == nil {
		return presence.Unknown
	}
	return c.APIs.Serves(kind)
}

// Fits counts how many more replicas with a claim fit, of an object that is there or is not, and names the quota that lets in
// no more; false when that is not known.
func (c *Cluster) Fits(claim *Claim, there bool) (replicas int64, quota string, known bool) {
	if c.Room == nil {
		return 0, "", false
	}
	replicas, quota = c.Room.Fits(claim, there)
	return replicas, quota, true
}

// fits counts how often what is to be placed has room in a cluster, in which it is or is not.
func (r *Request) fits(c *Cluster, there bool) (n int64, why lack, known bool) {
	switch {
	case c.Room == nil:
		return 0, lack{}, false
	case r.Components == nil:
		n, why.quota = c.Room.Fits(r.Claim, there)
	default:
		n, why.component, why.quota = c.Room.Sets(r.Components, there)
	}
	return n, why, true
}
