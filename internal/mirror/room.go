package mirror

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/scheduler"
)

// Room is what was free in a cluster at one moment: on its nodes what no pod requests, those that wait for a node
// among them, and what the quotas of its namespaces leave. It does not change.
type Room struct {
	places *places
	free   []int64             // of each node of places, in the order of its resources
	quotas map[string][]*quota // by namespace
}

// Room returns what is free in a cluster; false while its nodes or pods are not listed, or
// its ResourceQuotas, if they are required. It is copied only after a change.
func (m *Mirror) Room(cluster string) (room *Room, known bool) {
	c := m.cluster(cluster)
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.capacityKnown() || !c.quotasKnown() {
		return nil, false
	}
	if c.capacity.room == nil {
		c.capacity.room = c.capacity.measure()
	}
	return c.capacity.room, true
}

// Measured is true of the types by which it is known what is free in a cluster.
func Measured(gr schema.GroupResource) bool { return gr == nodes || gr == pods || gr == quotas }

// SubscribeRoom calls f after each change of what is free in a cluster. f must not block,
// nor ask the mirror.
func (m *Mirror) SubscribeRoom(f func(cluster string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.roomSubscribers.Load()), f)
	m.roomSubscribers.Store(&subscribers)
}

// places are the nodes that take pods, by name, and what they have. All Rooms share them until a node changes.
type places struct {
	resources   []corev1.ResourceName // pods come first
	nodes       []*corev1.Node        // what is known of them
	allocatable []int64               // of each node, in the order of resources

	mu    sync.Mutex
	taker map[string][]int // places of the nodes that take a claim, by Claim.Where
}

// mostTakers is of how many different claims places remember the nodes that take them.
const mostTakers = 256

func newPlaces(all map[string]*node) *places {
	p := &places{resources: []corev1.ResourceName{corev1.ResourcePods}, taker: map[string][]int{}}
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		for resource := range all[name].allocatable {
			if !slices.Contains(p.resources, resource) {
				p.resources = append(p.resources, resource)
			}
		}
	}
	for _, name := range names {
		if n := all[name]; n.ready && n.schedulable {
			p.nodes = append(p.nodes, n.about)
			for _, resource := range p.resources {
				p.allocatable = append(p.allocatable, n.allocatable[resource])
			}
		}
	}
	return p
}

// takers are the nodes that take replicas with a claim if they have the room, by their places. They are shared.
func (p *places) takers(claim *scheduler.Claim) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if all, known := p.taker[claim.Where()]; known {
		return all
	}
	if len(p.taker) >= mostTakers {
		clear(p.taker)
	}
	all := []int{}
	for i, n := range p.nodes {
		if claim.TakenBy(n) {
			all = append(all, i)
		}
	}
	p.taker[claim.Where()] = all
	return all
}

// measure adds up what is free; the cluster must be locked.
func (c *capacity) measure() *Room {
	if c.places == nil {
		c.places = newPlaces(c.nodes)
	}
	r := &Room{places: c.places, free: slices.Clone(c.places.allocatable), quotas: map[string][]*quota{}}
	width := len(c.places.resources)
	for i, n := range c.places.nodes {
		used := c.used[n.Name]
		for j, resource := range c.places.resources {
			r.free[i*width+j] = max(0, r.free[i*width+j]-used[resource])
		}
	}
	for _, same := range slices.Sorted(maps.Keys(c.waiting)) {
		r.take(c.waiting[same].claim, c.waiting[same].pods)
	}
	for k, q := range c.quotas {
		r.quotas[k.namespace] = append(r.quotas[k.namespace], q)
	}
	return r
}

// Fits counts the replicas with a claim that the quotas let in, and the free room takes, node by node. there says that
// the object is in the cluster already. quota is the one that lets in fewer than the nodes take, of several that let in the fewest the first by name.
func (r *Room) Fits(claim *scheduler.Claim, there bool) (replicas int64, quota string) {
	most := int64(math.MaxInt64)
	for _, q := range r.quotas[claim.Namespace()] {
		if !q.counts(claim) {
			continue
		}
		if n := q.fits(claim, there); n < most || n == most && q.name < quota {
			most, quota = n, q.name
		}
	}
	if most == 0 {
		return 0, claim.Namespace() + "/" + quota
	}
	var buffer [mostResources]int64
	each, offered := r.each(buffer[:0], claim)
	if !offered {
		return 0, ""
	}
	var total int64
	for _, i := range r.places.takers(claim) {
		total += fits(r.node(i), each)
	}
	if most < total {
		return most, claim.Namespace() + "/" + quota
	}
	return total, ""
}

// demand is a component on its way to nodes.
type demand struct {
	name   string
	pods   int64
	each   []int64 // what each of them takes of every resource
	takers []int
	most   int64 // that would have room without the other components
}

// Sets implements scheduler.Room. The components that would have room the fewest times come first: what fits in many places finds one beside them.
func (r *Room) Sets(components []scheduler.Component, there bool) (sets int64, lacking, quota string) {
	bound := int64(math.MaxInt32)
	for _, q := range r.quotas[components[0].Claim.Namespace()] {
		if n := q.sets(components, there); n < bound || n == bound && q.name < quota {
			bound, quota = n, q.name
		}
	}
	if quota != "" {
		quota = components[0].Claim.Namespace() + "/" + quota
	}
	if bound == 0 {
		return 0, "", quota
	}
	fit := int64(math.MaxInt32)
	demands := make([]demand, 0, len(components))
	for i := range components {
		c := &components[i]
		if c.Replicas <= 0 {
			continue
		}
		each, offered := r.each(nil, c.Claim)
		l := demand{name: c.Name, pods: c.Replicas, each: each}
		if offered {
			l.takers = r.places.takers(c.Claim)
		}
		for _, i := range l.takers {
			l.most += fits(r.node(i), each)
		}
		if l.most < l.pods {
			return 0, l.name, ""
		}
		fit = min(fit, l.most/l.pods)
		demands = append(demands, l)
	}
	slices.SortStableFunc(demands, func(a, b demand) int { return cmp.Compare(a.most, b.most) })
	free := make([]int64, len(r.free))
	if lacking := r.pack(free, demands, 1); lacking != "" {
		return 0, lacking, ""
	}
	most := min(fit, bound)
	if sets = most; r.pack(free, demands, most) != "" {
		sets = 1
		for most-sets > 1 { // sets fit, and most do not
			if half := sets + (most-sets)/2; r.pack(free, demands, half) == "" {
				sets = half
			} else {
				most = half
			}
		}
	}
	if sets < bound || fit == bound {
		quota = ""
	}
	return sets, "", quota
}

// pack puts them on nodes so many times, one after another, and says for which of them nothing was left. It works in free.
func (r *Room) pack(free []int64, demands []demand, times int64) (lacking string) {
	copy(free, r.free)
	width := len(r.places.resources)
	for i := range demands {
		l := &demands[i]
		if put(free, width, l.takers, l.each, l.pods*times) > 0 {
			return l.name
		}
	}
	return ""
}

// put puts pods on nodes, one node after another, and returns how many are left.
func put(free []int64, width int, takers []int, each []int64, pods int64) (left int64) {
	for _, i := range takers {
		node := free[i*width : (i+1)*width]
		here := min(pods, fits(node, each))
		for j := range node {
			node[j] -= here * each[j]
		}
		if pods -= here; pods <= 0 {
			break
		}
	}
	return pods
}

// Without is the room that is left when replicas have taken theirs. Those that fit on no node take none there; what
// they count in quotas they take even so.
func (r *Room) Without(taken []scheduler.Taken) *Room {
	left := &Room{places: r.places, free: slices.Clone(r.free), quotas: maps.Clone(r.quotas)}
	alike := make(map[string]*scheduler.Taken, 1) // by what they claim of nodes
	for i := range taken {
		t := taken[i]
		left.count(t)
		if all := alike[t.Claim.OfNode()]; all != nil {
			all.Replicas += t.Replicas
		} else {
			alike[t.Claim.OfNode()] = &t
		}
	}
	for _, ofNode := range slices.Sorted(maps.Keys(alike)) {
		left.take(alike[ofNode].Claim, alike[ofNode].Replicas)
	}
	return left
}

// count has replicas take of their namespace's quotas what they count there. The room must not be handed out yet.
func (r *Room) count(t scheduler.Taken) {
	all := slices.Clone(r.quotas[t.Claim.Namespace()])
	if len(all) == 0 {
		return
	}
	for i, q := range all {
		if q.counts(t.Claim) {
			all[i] = q.without(t)
		}
	}
	r.quotas[t.Claim.Namespace()] = all
}

// take gives room to replicas, on one node after another. The room must not be handed out yet.
func (r *Room) take(claim *scheduler.Claim, replicas int64) {
	var buffer [mostResources]int64
	each, offered := r.each(buffer[:0], claim)
	if !offered {
		return
	}
	put(r.free, len(r.places.resources), r.places.takers(claim), each, replicas)
}

// node is what is free on a node.
func (r *Room) node(i int) []int64 {
	width := len(r.places.resources)
	return r.free[i*width : (i+1)*width]
}

// mostResources is how many resources a cluster's nodes can have without an allocation for each count.
const mostResources = 16

// each appends what a replica with a claim takes of every resource; false: of one of them no node has any.
func (r *Room) each(out []int64, claim *scheduler.Claim) (each []int64, offered bool) {
	offered = true
	for range r.places.resources {
		out = append(out, 0)
	}
	for name, n := range claim.Requests() {
		if n <= 0 {
			continue
		}
		if i := slices.Index(r.places.resources, name); i >= 0 {
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
