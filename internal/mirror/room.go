package mirror

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Room is what was free on a cluster's nodes at one moment. It does not change.
type Room struct {
	resources []corev1.ResourceName
	free      []int64 // of each node that takes pods, in the order of resources
}

// Room returns what is free on a cluster's nodes; false while its nodes or pods are not
// listed. It is copied only after a change.
func (m *Mirror) Room(cluster string) (room *Room, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[cluster]
	if c == nil || !c.capacityKnown() {
		return nil, false
	}
	if c.capacity.room == nil {
		c.capacity.room = c.capacity.measure()
	}
	return c.capacity.room, true
}

// SubscribeRoom calls f after each change of what is free in a cluster. f must not block,
// nor ask the mirror.
func (m *Mirror) SubscribeRoom(f func(cluster string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roomSubscribers = append(m.roomSubscribers, f)
}

// measure adds up what is free; the index must be locked.
func (c *capacity) measure() *Room {
	r := &Room{resources: []corev1.ResourceName{corev1.ResourcePods}}
	for _, n := range c.nodes {
		for name := range n.allocatable {
			if !slices.Contains(r.resources, name) {
				r.resources = append(r.resources, name)
			}
		}
	}
	for name, n := range c.nodes {
		if n.ready && n.schedulable {
			for _, resource := range r.resources {
				r.free = append(r.free, max(0, n.allocatable[resource]-c.used[name][resource]))
			}
		}
	}
	return r
}

// Fits counts the replicas with a request that the free room takes, node by node.
func (r *Room) Fits(request corev1.ResourceList) int64 {
	var total int64
	for node := range slices.Chunk(r.free, len(r.resources)) {
		here := min(math.MaxInt32, node[0]) // each replica is a pod
		for name, q := range request {
			each := q.Value()
			if name == corev1.ResourceCPU {
				each = q.MilliValue()
			}
			switch i := slices.Index(r.resources, name); {
			case each <= 0 || i == 0:
			case i < 0:
				here = 0 // no node has any of it
			default:
				here = min(here, node[i]/each)
			}
		}
		total += here
	}
	return total
}
