package scheduler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/presence"
)

// Cluster has the properties of a cluster that the scheduler uses. It is immutable once it is in a
// snapshot of the fleet, because decisions and snapshots share it.
type Cluster struct {
	Name string
	// UID is the UID of the Cluster object. A cluster that joins again under the same name has another
	// UID.
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
	// Probed is false until the first result of this process's probes; Reachable and Lost are false
	// meanwhile. Lost is true if the cluster does not answer. A cluster that answers and refuses the
	// hub is neither Reachable nor Lost. Since is when Reachable or Lost last changed; zero: never.
	Probed, Lost bool
	Since        time.Time
	// APIs reports the kinds that the cluster serves; nil while they are unknown.
	APIs APIs
	// Bounds limits the namespaces in which the hub may place objects; nil: no limit.
	Bounds *Bounds
	// FreeCapacity is the free capacity; nil while it is unknown. Only dynamic weights, Aggregated
	// division and components use it.
	FreeCapacity FreeCapacity
}

// Bounds are the namespaces in which the profile of a cluster's agent allows the hub to place
// objects.
type Bounds struct {
	// Profile is the name of the agent's profile.
	Profile string
	// Namespaces in which objects may be placed; empty: in none.
	Namespaces []string
}

// takes reports whether the profile lets the hub place objects in the namespace; "" stands for
// cluster-scoped objects. It is true if b is nil.
func (b *Bounds) takes(namespace string) bool {
	return b == nil || slices.Contains(b.Namespaces, namespace)
}

// Equal reports whether b and other have the same profile, and the same namespaces in the same
// order. Both may be nil; nil equals only nil.
func (b *Bounds) Equal(other *Bounds) bool {
	if b == nil || other == nil {
		return b == other
	}
	return b.Profile == other.Profile && slices.Equal(b.Namespaces, other.Namespaces)
}

// String returns a message for users: what the profile allows, and how to change the profile. b
// must not be nil.
func (b *Bounds) String() string {
	const wayOut = "; give it another with spec.agent of the Cluster and orrery cluster rejoin"
	if len(b.Namespaces) == 0 {
		return "its agent's profile " + b.Profile + " lets the hub place nothing there" + wayOut
	}
	return "its agent's profile " + b.Profile + " lets the hub place only objects of the namespaces " + strings.Join(b.Namespaces, ", ") + wayOut
}

// APIs reports whether a cluster serves a kind: Present, Absent, or Unknown while an API of the
// cluster does not answer.
type APIs interface {
	Serves(kind schema.GroupVersionKind) presence.Presence
}

// FreeCapacity is the free capacity of a cluster at one moment.
type FreeCapacity interface {
	// Fits returns how many more replicas with the claim fit. there is true if the object of the
	// replicas is in the cluster already, so that object count quotas count it. quota is the
	// ResourceQuota (NAMESPACE/NAME) that admits fewer replicas than the nodes could take; "" if there
	// is none.
	Fits(claim *Claim, there bool) (replicas int64, quota string)
	// Sets returns how often all replicas of all components fit together. The components are in one
	// namespace. there is true if their object is in the cluster already. quota is the ResourceQuota
	// (NAMESPACE/NAME) that admits fewer; "" if there is none. If they do not fit once, and no quota
	// is the cause, lacking is the name of the first component without capacity.
	Sets(components []Component, there bool) (sets int64, lacking, quota string)
}

// Component is one kind of pod of an object that has several kinds: a number of replicas with the
// same claim.
type Component struct {
	Name     string
	Claim    *Claim
	Replicas int64
}

// lack is the reason why a cluster has no more free capacity for an object. The zero value means
// that its nodes are full.
type lack struct {
	quota     string // the ResourceQuota that admits no more
	component string // the component without capacity
}

// compare orders two values of lack by quota, then by component. It is negative if l comes first,
// and 0 if they are equal.
func (l lack) compare(other lack) int {
	return cmp.Or(strings.Compare(l.quota, other.quota), strings.Compare(l.component, other.component))
}

// Serves reports whether the cluster serves the kind. It is presence.Unknown if the kinds of the
// cluster are unknown.
func (c *Cluster) Serves(kind schema.GroupVersionKind) presence.Presence {
	if c.APIs == nil {
		return presence.Unknown
	}
	return c.APIs.Serves(kind)
}

// Fits returns how many more replicas with the claim fit, and the ResourceQuota (NAMESPACE/NAME)
// that admits fewer than the nodes could take; "" if none does. there is true if the object of the
// replicas is in the cluster already. If the free capacity is unknown, known is false and replicas
// is 0.
func (c *Cluster) Fits(claim *Claim, there bool) (replicas int64, quota string, known bool) {
	if c.FreeCapacity == nil {
		return 0, "", false
	}
	replicas, quota = c.FreeCapacity.Fits(claim, there)
	return replicas, quota, true
}

// fits returns how often the requested unit fits in the cluster: a replica or, with Components, all
// components together. there is true if the object is in the cluster already. why is the reason why
// no more fit. known is false if the free capacity is unknown.
func (r *Request) fits(c *Cluster, there bool) (n int64, why lack, known bool) {
	switch {
	case c.FreeCapacity == nil:
		return 0, lack{}, false
	case r.Components == nil:
		n, why.quota = c.FreeCapacity.Fits(r.Claim, there)
	default:
		n, why.component, why.quota = c.FreeCapacity.Sets(r.Components, there)
	}
	return n, why, true
}
