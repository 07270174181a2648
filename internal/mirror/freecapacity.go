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

// FreeCapacity is what a cluster can still take at one moment: what its nodes offer less the
// requests of all pods, pending ones included, and what the ResourceQuotas of its namespaces have
// left. It is immutable.
type FreeCapacity struct {
	places *places
	free   []int64             // an amount for each node of places and each of places.resources
	quotas map[string][]*quota // by namespace
}

// FreeCapacity returns the free capacity of a cluster. known is false for a cluster that is not
// mirrored, and until its nodes, its pods and, if they are required (see Require), its
// ResourceQuotas are listed. The result is the same pointer until the capacity changes.
func (m *Mirror) FreeCapacity(cluster string) (free *FreeCapacity, known bool) {
	c := m.cluster(cluster)
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.capacityKnown() || !c.quotasKnown() {
		return nil, false
	}
	if c.capacity.freeCapacity == nil {
		c.capacity.freeCapacity = c.capacity.measure()
	}
	return c.capacity.freeCapacity, true
}

// Measured reports whether the free capacity of clusters depends on a type: nodes, pods and
// resourcequotas.
func Measured(gr schema.GroupResource) bool { return gr == nodes || gr == pods || gr == quotas }

// SubscribeFreeCapacity registers f, which is called after each change of a cluster's free
// capacity. The mirror holds locks during the call: f must not block or call the mirror.
func (m *Mirror) SubscribeFreeCapacity(f func(cluster string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	subscribers := append(slices.Clone(*m.capacitySubscribers.Load()), f)
	m.capacitySubscribers.Store(&subscribers)
}

// places are the nodes of a cluster that accept pods, sorted by name, with the resources that they
// offer. All values of `FreeCapacity` of a cluster share one places until a node changes.
type places struct {
	resources   []corev1.ResourceName // that any node offers; the resource pods comes first
	nodes       []*corev1.Node        // name, labels and taints
	allocatable []int64               // an amount for each node and each of resources

	mu    sync.Mutex
	taker map[string][]int // by Claim.Where: indexes of the nodes that accept the claim
}

// mostTakers is the number of claims (what a replica requires of a cluster) for which places caches
// the nodes that accept it. Beyond that, the cache is emptied.
const mostTakers = 256

// newPlaces returns the nodes that are ready and schedulable, with the resources that any node
// offers.
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

// takers returns the indexes in p.nodes of the nodes that accept replicas with the claim by their
// labels and taints. Free capacity does not count here. The result is shared; callers must not
// change it.
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

// measure computes the free capacity from the nodes, pods and quotas. Pending pods are subtracted
// from the nodes that could take them. The caller holds the cluster's lock.
func (c *capacity) measure() *FreeCapacity {
	if c.places == nil {
		c.places = newPlaces(c.nodes)
	}
	r := &FreeCapacity{places: c.places, free: slices.Clone(c.places.allocatable), quotas: map[string][]*quota{}}
	width := len(c.places.resources)
	for i, n := range c.places.nodes {
		used := c.used[n.Name]
		for j, resource := range c.places.resources {
			r.free[i*width+j] = max(0, minus(r.free[i*width+j], used[resource].value()))
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

// Fits returns how many replicas with the claim both the nodes and the quotas of the namespace
// accept. there is true if the object of the replicas exists in the cluster already, so that quotas
// do not count it again. quota is the NAMESPACE/NAME of the quota that accepts the fewest replicas,
// if it accepts fewer than the nodes; of several such quotas, the first by name. quota is "" if the
// nodes are the limit.
func (r *FreeCapacity) Fits(claim *scheduler.Claim, there bool) (replicas int64, quota string) {
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

// demand is a component, one of several kinds of pods of an object, as pack puts it on nodes.
type demand struct {
	name   string
	pods   int64   // number of pods of the component
	each   []int64 // amount of each of places.resources that one pod requests
	takers []int   // indexes of the nodes that accept the pods
	most   int64   // how many pods fit without the other components
}

// Sets implements scheduler.FreeCapacity: it returns how many times all replicas of all components
// fit together. there is true if the object of the components exists in the cluster already. If the
// components do not fit once, sets is 0. Then lacking names the component for which the nodes have
// no capacity, or quota the ResourceQuota that refuses the components. quota is also set if it is
// the limit of a sets above 0. components must not be empty.
//
// Sets puts those components on nodes first that fit the fewest times. The others fit on more
// nodes, and so find capacity more easily afterwards.
func (r *FreeCapacity) Sets(components []scheduler.Component, there bool) (sets int64, lacking, quota string) {
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
		for most-sets > 1 { // bisection: the components fit sets times, and not most times
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

// pack tries to put every component on the nodes, each with times as many pods as it has. It
// returns the name of the first component that does not fit; "": all fit. free is working memory of
// the length of r.free.
func (r *FreeCapacity) pack(free []int64, demands []demand, times int64) (lacking string) {
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

// put places pods on the nodes with the indexes takers, one node after another, and returns how
// many pods did not fit. each has the requests of one pod. put subtracts them from free, which has
// width amounts for each node.
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

// Without returns the free capacity that remains when the given replicas and objects are placed in
// the cluster. Replicas that fit on no node take nothing from the nodes, but still count in quotas.
func (r *FreeCapacity) Without(taken []scheduler.Taken) *FreeCapacity {
	left := &FreeCapacity{places: r.places, free: slices.Clone(r.free), quotas: maps.Clone(r.quotas)}
	alike := make(map[string]*scheduler.Taken, 1) // by Claim.OfNode
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

// count subtracts replicas and objects from the quotas of their namespace. Only the function that
// creates r may call it, before others can see r.
func (r *FreeCapacity) count(t scheduler.Taken) {
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

// take subtracts replicas with a claim from the nodes that accept them, one node after another.
// Only the function that creates r may call it, before others can see r.
func (r *FreeCapacity) take(claim *scheduler.Claim, replicas int64) {
	var buffer [mostResources]int64
	each, offered := r.each(buffer[:0], claim)
	if !offered {
		return
	}
	put(r.free, len(r.places.resources), r.places.takers(claim), each, replicas)
}

// node returns the free amounts of the node with the index i, in the order of places.resources.
func (r *FreeCapacity) node(i int) []int64 {
	width := len(r.places.resources)
	return r.free[i*width : (i+1)*width]
}

// mostResources is the number of resources for which Fits and take use a buffer on the stack. If
// the nodes of a cluster offer more kinds of resources, each call allocates memory.
const mostResources = 16

// each appends to out the amounts that one replica with the claim requests, one for each of
// places.resources. offered is false if the claim requests a resource that no node offers.
func (r *FreeCapacity) each(out []int64, claim *scheduler.Claim) (each []int64, offered bool) {
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

// fits returns how many replicas fit on a node, at most math.MaxInt32. node has the free amounts of
// the node, and each the requests of one replica, in the same order of resources.
func fits(node, each []int64) int64 {
	here := int64(math.MaxInt32)
	for i, n := range each {
		if n > 0 {
			here = min(here, node[i]/n)
		}
	}
	return here
}
