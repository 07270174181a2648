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

// Room is the free capacity of a cluster at one moment: on its nodes, less the requests of pods,
// including pending pods, and in the quotas of its namespaces. It is immutable.
type Room struct {
	places *places
	free   []int64             // by node of places, in the order of its resources
	quotas map[string][]*quota // by namespace
}

// Room returns the free capacity of a cluster. known is false while its nodes, pods or required
// ResourceQuotas are not listed. The result is computed only after a change.
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

// Measured reports whether the free capacity of clusters depends on a type.
func Measured(gr schema.GroupResource) bool { return gr == nodes || gr == pods || gr == quotas }

// SubscribeRoom registers f, which is called after each change of a cluster's free capacity. f
// must not block or call the mirror.
func (m *Mirror) SubscribeRoom(f func(cluster string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.roomSubscribers.Load()), f)
	m.roomSubscribers.Store(&subscribers)
}

// places are the nodes that accept pods, sorted by name, and their resources. All values of
// `Room` share them until a node changes.
type places struct {
	resources   []corev1.ResourceName // pods come first
	nodes       []*corev1.Node        // name, labels and taints
	allocatable []int64               // by node, in the order of resources

	mu    sync.Mutex
	taker map[string][]int // indexes of the nodes that accept a claim, by Claim.Where
}

// mostTakers is the number of claims whose nodes are cached.
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

// takers returns the indexes of the nodes that accept replicas with a claim, if their capacity
// suffices. The result is shared.
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

// measure computes the free capacity. The caller holds the cluster's lock.
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

// Fits returns how many replicas with a claim the nodes and the quotas accept. there means that
// the object exists in the cluster already. quota is the NAMESPACE/NAME of the quota that accepts
// fewer replicas than the nodes, or the first such quota by name. It is empty if the nodes are
// the limit.
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

// demand is a component that is to be put on nodes.
type demand struct {
	name   string
	pods   int64
	each   []int64 // amount of each resource for one pod
	takers []int
	most   int64 // how many pods fit without the other components
}

// Sets implements scheduler.Room. The components that fit the fewest times are placed first. The
// others fit in more nodes, and so more easily beside them.
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
		for most-sets > 1 { // sets of replicas fit, and most do not
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

// pack puts the components on nodes, each times over. It returns the name of the first component
// that does not fit; "": all fit. free is its working memory.
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

// put puts pods on nodes, one node after another, and returns how many did not fit.
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

// Without returns the free capacity after replicas have used their share. Replicas that fit on no
// node use none of the nodes, but still count in quotas.
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

// count subtracts replicas from the quotas of their namespace. It must be called before the
// result is shared.
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

// take subtracts replicas from the nodes, one node after another. It must be called before the
// result is shared.
func (r *Room) take(claim *scheduler.Claim, replicas int64) {
	var buffer [mostResources]int64
	each, offered := r.each(buffer[:0], claim)
	if !offered {
		return
	}
	put(r.free, len(r.places.resources), r.places.takers(claim), each, replicas)
}

// node returns the free amounts of a node.
func (r *Room) node(i int) []int64 {
	width := len(r.places.resources)
	return r.free[i*width : (i+1)*width]
}

// mostResources is the number of resources of a cluster's nodes up to which counting replicas
// does not allocate.
const mostResources = 16

// each appends the amount of every resource that one replica with a claim uses. offered is false
// if no node has one of the resources.
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

// fits returns how many replicas fit on a node.
func fits(node, each []int64) int64 {
	here := int64(math.MaxInt32)
	for i, n := range each {
		if n > 0 {
			here = min(here, node[i]/n)
		}
	}
	return here
}
