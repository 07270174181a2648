package scheduler

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// maxWeight keeps products of weights and replicas within 63 bits.
const maxWeight = 1 << 30

// assign gives replicas to clusters that fit. shortage says why it could not; the targets
// are then what stays.
func assign(fitting []*Cluster, r *Request, previous map[string]int64) (targets []workv1alpha2.TargetCluster, shortage string) {
	switch {
	case !r.divided():
		return every(fitting, r.Replicas), ""
	case *r.Replicas <= 0:
		// Nothing to share out. The object stays in its clusters, asleep.
		return every(fitting, new(int32(0))), ""
	case r.Placement.dynamic:
		return dynamic(fitting, r, previous)
	}
	candidates := make([]candidate, len(fitting))
	for i, c := range fitting {
		candidates[i] = candidate{i: i, name: c.Name, weight: r.Placement.weigh(c)}
	}
	return share(r.UID, candidates, *r.Replicas), ""
}

// every gives each cluster the same number of replicas.
func every(clusters []*Cluster, replicas *int32) []workv1alpha2.TargetCluster {
	targets := make([]workv1alpha2.TargetCluster, len(clusters))
	for i, c := range clusters {
		targets[i].Name = c.Name
		if replicas != nil {
			targets[i].Replicas = new(*replicas)
		}
	}
	return targets
}

// dynamic shares replicas out by free capacity, and moves as few as it can: what runs and
// still fits stays, a growing workload places only what is new, a shrinking one gives up
// in proportion to what it has.
func dynamic(fitting []*Cluster, r *Request, previous map[string]int64) (targets []workv1alpha2.TargetCluster, shortage string) {
	var running, free int64
	has, room := make([]candidate, len(fitting)), make([]candidate, len(fitting))
	for i, c := range fitting {
		has[i] = candidate{i: i, name: c.Name, weight: previous[c.Name]}
		room[i] = candidate{i: i, name: c.Name}
		// Replicas in a cluster that does not answer stay, and none join them.
		if n, known := c.Fits(r.Requests); known && c.Reachable {
			room[i].weight = min(max(n, 0), maxWeight)
		}
		running += has[i].weight
		free += room[i].weight
	}
	added := int64(*r.Replicas) - running
	switch {
	case free < added:
		return stay(fitting, r.Previous), fmt.Sprintf("%d more replicas are asked for and %d fit", added, free)
	case r.Fresh:
		for i := range room {
			// What runs takes room that would be free for it.
			room[i].weight = min(room[i].weight+has[i].weight, maxWeight)
		}
		return share(r.UID, room, *r.Replicas), ""
	case added > 0:
		for _, c := range seat(r.UID, room, int32(added)) { //nolint:gosec // at most *r.Replicas
			has[c.i].weight += c.seats
		}
	}
	// The weights add up to what is asked for, or to more: then all give up their share.
	return share(r.UID, has, *r.Replicas), ""
}

// stay is what of a placement is in some clusters.
func stay(clusters []*Cluster, previous []workv1alpha2.TargetCluster) []workv1alpha2.TargetCluster {
	return slices.DeleteFunc(slices.Clone(previous), func(t workv1alpha2.TargetCluster) bool { return find(clusters, t.Name) < 0 })
}

// candidate is a cluster that replicas are shared with.
type candidate struct {
	i      int // its place among the clusters
	name   string
	weight int64
	seats  int64
	tie    uint64
}

// share gives n replicas to candidates; those that get none are left out. No weights:
// nobody gets any.
func share(uid types.UID, candidates []candidate, n int32) []workv1alpha2.TargetCluster {
	seated := seat(uid, candidates, n)
	targets := make([]workv1alpha2.TargetCluster, 0, min(len(seated), int(n)))
	for _, c := range seated {
		if c.seats > 0 {
			targets = append(targets, workv1alpha2.TargetCluster{Name: c.name, Replicas: new(int32(c.seats))}) //nolint:gosec // at most n
		}
	}
	slices.SortFunc(targets, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
	return targets
}

// seat gives n replicas to candidates by Webster's method: one after another, each to the
// candidate with the greatest weight/(2·seats+1).
func seat(uid types.UID, candidates []candidate, n int32) []candidate {
	candidates = slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return c.weight <= 0 })
	var sum int64
	for i := range candidates {
		candidates[i].weight = min(candidates[i].weight, maxWeight)
		sum += candidates[i].weight
	}
	if sum == 0 {
		return nil
	}
	// Everybody surely gets the replicas that are due when n is smaller by the number of
	// candidates: rounding adds at most half a replica each. What is left is given out
	// one by one, so the time does not grow with n.
	left := int64(n)
	sure := max(0, left-int64(len(candidates)))
	for i := range candidates {
		c := &candidates[i]
		c.seats = (2*c.weight*sure + sum) / (2 * sum)
		if sure == 0 {
			c.seats = 0
		}
		c.tie = tie(uid, c.name)
		left -= c.seats
	}
	q := queue(candidates)
	heap.Init(&q)
	for range left {
		q[0].seats++
		heap.Fix(&q, 0)
	}
	return q
}

// tie is the FNV-1a hash of an object's UID and a cluster's name.
func tie(uid types.UID, name string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(uid) {
		h = (h ^ uint64(uid[i])) * prime
	}
	h *= prime // a zero byte between the two
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	return h
}

// queue is a heap of candidates, whose turn it is first.
type queue []candidate

func (q *queue) Len() int      { return len(*q) }
func (q *queue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }
func (q *queue) Less(i, j int) bool {
	a, b := &(*q)[i], &(*q)[j]
	if x, y := a.weight*(2*b.seats+1), b.weight*(2*a.seats+1); x != y {
		return x > y
	}
	if a.weight != b.weight {
		return a.weight > b.weight
	}
	if a.tie != b.tie {
		return a.tie < b.tie
	}
	return a.name < b.name
}

// Push and Pop make it a heap.Interface; candidates neither join nor leave.
func (q *queue) Push(c any) {
	if candidate, ok := c.(candidate); ok {
		*q = append(*q, candidate)
	}
}

// Pop is there for heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}
