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

// Cluster has the properties of a cluster that the scheduler uses. It is immutable once
// published, so decisions and snapshots share it.
type Cluster struct {
	Name string
	// UID of the Cluster object. A cluster that joins again under the same name has another UID.
	UID              types.UID
	Labels           labels.Set
	Provider, Region string
	Zones            []string
	Taints           []corev1.Taint

	Leaving bool // the cluster is being removed from the fleet
	Joined  bool // the cluster's identity is recorded: the cluster answered at least once
	// Expected is true if the cluster was ready when its status was last written, perhaps by an
	// earlier process.
	Expected  bool
	Reachable bool // the cluster answers
	// APIs reports the kinds that the cluster serves; nil while they are unknown.
	APIs APIs
	// Bounds limits the namespaces in which the hub may place objects; nil: no limit.
	Bounds *Bounds
	// Room is the free capacity; nil while it is unknown. Only dynamic weights, Aggregated division
	// and components use it.
	Room Room
}

// Bounds is what the profile of a cluster's agent allows the hub to place.
type Bounds struct {
	// Profile is the name of the agent's profile.
	Profile string
	// Namespaces in which objects may be placed; empty: in none.
	Namespaces []string
}

// takes reports whether an object of the namespace may be placed; "" is a cluster-scoped object.
func (b *Bounds) takes(namespace string) bool {
	return b == nil || slices.Contains(b.Namespaces, namespace)
}

// Equal reports whether b and other are the same bounds. Both may be nil.
func (b *Bounds) Equal(other *Bounds) bool {
	if b == nil || other == nil {
		return b == other
	}
	return b.Profile == other.Profile && slices.Equal(b.Namespaces, other.Namespaces)
}

// String returns a message for users: what the profile allows, and how to change the profile.
func (b *Bounds) String() string {
	const wayOut = "; give it another with spec.agent of the Cluster and orrery cluster rejoin"
	if len(b.Namespaces) == 0 {
		return "its agent's profile " + b.Profile + " lets the hub place nothing there" + wayOut
	}
	return "its agent's profile " + b.Profile + " lets the hub place only objects of the namespaces " + strings.Join(b.Namespaces, ", ") + wayOut
}

// APIs reports whether a cluster serves a kind.
type APIs interface {
	Serves(kind schema.GroupVersionKind) presence.Presence
}

// Room is the free capacity of a cluster at one moment.
type Room interface {
	// Fits returns how many more replicas with the claim fit. there is true if the object is in the
	// cluster already. quota is the ResourceQuota (NAMESPACE/NAME) that admits fewer replicas than
	// the nodes could take; "" if there is none.
	Fits(claim *Claim, there bool) (replicas int64, quota string)
	// Sets returns how often all replicas of the components fit together. The components are in one
	// namespace. If they do not fit once, and no quota is the cause, lacking is the name of the
	// first component without capacity.
	Sets(components []Component, there bool) (sets int64, lacking, quota string)
}

// Component is one kind of pod of an object that has several kinds: a number of replicas with the
// same claim.
type Component struct {
	Name     string
	Claim    *Claim
	Replicas int64
}

// lack is the reason why a cluster has no more capacity. The zero value means its nodes are full.
type lack struct {
	quota     string // the ResourceQuota that admits no more
	component string // the component without capacity
}

func (l lack) compare(other lack) int {
	return cmp.Or(strings.Compare(l.quota, other.quota), strings.Compare(l.component, other.component))
}

// Serves reports whether the cluster serves the kind.
func (c *Cluster) Serves(kind schema.GroupVersionKind) presence.Presence {
	if c.APIs == nil {
		return presence.Unknown
	}
	return c.APIs.Serves(kind)
}

// Fits returns how many more replicas with the claim fit, and the quota that limits them; "" if
// none does. known is false if the capacity is unknown. there is true if the object is in the
// cluster already.
func (c *Cluster) Fits(claim *Claim, there bool) (replicas int64, quota string, known bool) {
	if c.Room == nil {
		return 0, "", false
	}
	replicas, quota = c.Room.Fits(claim, there)
	return replicas, quota, true
}

// fits returns how often the requested unit (a replica, or all components together) fits in the
// cluster. known is false if the capacity is unknown.
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
