package mirror

import (
	"iter"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Room is what was free on a cluster's nodes at one moment: what no pod requests, those that wait
// for a node among them. It does not change.
type Room struct {
	resources []corev1.ResourceName // pods come first
	free      []int64               // of each node that takes pods, in the order of resources
}

// Room returns what is free on a cluster's nodes; false while its nodes or pods are not
// listed. It is copied only after a change.
func (m *Mirror) Room(cluster string) (room *Room, known bool) {
	c := m.cluster(cluster)
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.capacityKnown() {
		return nil, false
	}
	if c.capacity.room == nil {
		c.capacity.room = c.capacity.measure()
	}
	return c.capacity.room, true
}

// Measured is true of the types by which it is known what is free in a cluster.
func Measured(gr schema.GroupResource) bool { return gr == nodes || gr == pods }

// SubscribeRoom calls f after each change of what is free in a cluster. f must not block,
// nor ask the mirror.
func (m *Mirror) SubscribeRoom(f func(cluster string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.roomSubscribers.Load()), f)
	m.roomSubscribers.Store(&subscribers)
}

// measure adds up what is free; the cluster must be locked.
func (c *capacity) measure() *Room {
	r := &Room{resources: []corev1.ResourceName{corev1.ResourcePods}}
	for _, n := range c.nodes {
		for name := range n.allocatable {
			if !slices.Contains(r.resources, name) {
				r.resources = append(r.resources, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if n := c.nodes[name]; n.ready && n.schedulable {
			for _, resource := range r.resources {
				r.free = append(r.free, max(0, n.allocatable[resource]-c.used[name][resource]))
			}
		}
	}
	for _, same := range slices.Sorted(maps.Keys(c.waiting)) {
		r.take(c.waiting[same].request, c.waiting[same].pods)
	}
	return r
}

// Fits counts the replicas with a request that the free room takes, node by node.
func (r *Room) Fits(request corev1.ResourceList) int64 {
	var buffer [mostResources]int64
	each, offered := r.each(buffer[:0], request)
	if !offered {
		return 0
	}
	var total int64
	for node := range slices.Chunk(r.free, len(each)) {
		total += fits(node, each)
	}
	return total
}

// Without is the room that is left when replicas have taken theirs, which come as requests and
// how many replicas have them. Those that fit nowhere take nothing.
func (r *Room) Without(taken iter.Seq2[corev1.ResourceList, int64]) *Room {
	left := &Room{resources: r.resources, free: slices.Clone(r.free)}
	for request, replicas := range taken {
		left.take(request, replicas)
	}
	return left
}

// take gives room to replicas, on one node after another. The room must not be handed out yet.
func (r *Room) take(request corev1.ResourceList, replicas int64) {
	var buffer [mostResources]int64
	each, offered := r.each(buffer[:0], request)
	if !offered {
		return
	}
	for node := range slices.Chunk(r.free, len(each)) {
		here := min(replicas, fits(node, each))
		for i := range node {
			node[i] -= here * each[i]
		}
		if replicas -= here; replicas <= 0 {
			return
		}
	}
}

// mostResources is how many resources a cluster's nodes can have without an allocation for each count.
const mostResources = 16

// each appends what a replica with a request takes of every resource; false: of one of them no
// node has any.
func (r *Room) each(out []int64, request corev1.ResourceList) (each []int64, offered bool) {
	offered = true
	for range r.resources {
		out = append(out, 0)
	}
	for name, q := range request {
		n := q.Value()
		if name == corev1.ResourceCPU {
			n = q.MilliValue()
		}
		if n <= 0 {
			continue
		}
		if i := slices.Index(r.resources, name); i >= 0 {
			out[i] = n
		} else {
			offered = false
		}
	}
	out[0] = 1 // each replica is a pod
	return out, offered
}

// fits counts the replicas that a node takes.
func fits(node, each []int64) int64 {
	here := int64(math.MaxInt32)
	for i, n := range each {
		if n > 0 {
			here = min(here, node[i]/n)
		}
	}
	return here
}
