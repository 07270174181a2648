package scheduler

import (
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
	// cluster already.
	Fits(claim *Claim, there bool) int64
}

// Serves says whether the cluster serves a kind.
func (c *Cluster) Serves(kind schema.GroupVersionKind) presence.Presence {
	if c.APIs == nil {
		return presence.Unknown
	}
	return c.APIs.Serves(kind)
}

// Fits counts how many more replicas with a claim fit, of an object that is there or is not; false
// when that is not known.
func (c *Cluster) Fits(claim *Claim, there bool) (replicas int64, known bool) {
	if c.Room == nil {
		return 0, false
	}
	return c.Room.Fits(claim, there), true
}
