package scheduler

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// maxWeight keeps products of weights and replicas within 63 bits.
const maxWeight = 1 << 30

// assign gives replicas to clusters that fit. shortage says why it could not; the targets
// are then what stays.
func assign(clusters []Cluster, r Request) (targets []workv1alpha2.TargetCluster, shortage string) {
	all := make([]string, len(clusters))
	for i, c := range clusters {
		all[i] = c.Name
	}
	strategy := r.Placement.ReplicaScheduling
	switch {
	case r.Replicas == nil || !divided(r):
		return every(all, r.Replicas), ""
	case *r.Replicas <= 0:
		// Nothing to share out. The object stays in its clusters, asleep.
		return every(all, new(int32(0))), ""
	case strategy.WeightPreference != nil && strategy.WeightPreference.DynamicWeight != "":
		return dynamic(clusters, r)
	}
	candidates := make([]candidate, len(clusters))
	for i, c := range clusters {
		candidates[i] = candidate{name: c.Name, weight: 1}
		if list := staticWeights(r); list != nil {
			candidates[i].weight, _ = weigh(list, c) // the filter has seen the error
		}
	}
	return share(r.UID, candidates, *r.Replicas), ""
}

func divided(r Request) bool {
	s := r.Placement.ReplicaScheduling
	return s != nil && s.ReplicaSchedulingType == policyv1alpha1.Divided
}

// staticWeights is the list that weighs clusters; nil when none does.
func staticWeights(r Request) []policyv1alpha1.StaticClusterWeight {
	if r.Replicas == nil || !divided(r) || r.Placement.ReplicaScheduling.WeightPreference == nil {
		return nil
	}
	return r.Placement.ReplicaScheduling.WeightPreference.StaticWeightList
}

// weigh is the greatest weight that a list gives a cluster.
func weigh(list []policyv1alpha1.StaticClusterWeight, c Cluster) (int64, error) {
	var greatest int64
	for i, entry := range list {
		matches, err := match(&entry.TargetCluster, c)
		if err != nil {
			return 0, fmt.Errorf("staticWeightList[%d].targetCluster.%w", i, err)
		}
		if matches {
			greatest = max(greatest, entry.Weight)
		}
	}
	return greatest, nil
}

// dynamic shares replicas out by free capacity, and moves as few as it can: what runs and
// still fits stays, a growing workload places only what is new, a shrinking one gives up
// in proportion to what it has.
func dynamic(clusters []Cluster, r Request) (targets []workv1alpha2.TargetCluster, shortage string) {
	previous := make(map[string]int64, len(r.Previous))
	for _, t := range r.Previous {
		previous[t.Name] = current(t)
	}
	var running, free int64
	has, room := make([]candidate, len(clusters)), make([]candidate, len(clusters))
	at := make(map[string]int, len(clusters))
	for i, c := range clusters {
		at[c.Name] = i
		has[i] = candidate{name: c.Name, weight: previous[c.Name]}
		room[i] = candidate{name: c.Name}
		// Replicas in a cluster that does not answer stay, and none join them.
		if c.Available != nil && c.Reachable {
			room[i].weight = min(max(*c.Available, 0), maxWeight)
		}
		running += has[i].weight
		free += room[i].weight
	}
	added := int64(*r.Replicas) - running
	switch {
	case free < added:
		stays := slices.DeleteFunc(slices.Clone(r.Previous), func(t workv1alpha2.TargetCluster) bool {
			_, fits := at[t.Name]
			return !fits
		})
		return stays, fmt.Sprintf("%d more replicas are asked for and %d fit", added, free)
	case r.Fresh:
		for i := range room {
			// What runs takes room that would be free for it.
			room[i].weight = min(room[i].weight+has[i].weight, maxWeight)
		}
		return share(r.UID, room, *r.Replicas), ""
	case added > 0:
		for _, t := range share(r.UID, room, int32(added)) { //nolint:gosec // at most *r.Replicas
			has[at[t.Name]].weight += current(t)
		}
	}
	// The weights add up to what is asked for, or to more: then all give up their share.
	return share(r.UID, has, *r.Replicas), ""
}

// candidate is a cluster that replicas are shared with.
type candidate struct {
	name   string
	weight int64
	seats  int64
	tie    uint64
}

// weighted are candidates that weigh what they have.
func weighted(targets []workv1alpha2.TargetCluster) []candidate {
	candidates := make([]candidate, len(targets))
	for i, t := range targets {
		candidates[i] = candidate{name: t.Name, weight: current(t)}
	}
	return candidates
}

// share gives n replicas to candidates by Webster's method: one after another, each to the
// candidate with the greatest weight/(2·seats+1). Those that get none are left out. No
// weights: nobody gets any.
func share(uid types.UID, candidates []candidate, n int32) []workv1alpha2.TargetCluster {
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
	var targets []workv1alpha2.TargetCluster
	for _, c := range q {
		if c.seats > 0 {
			targets = append(targets, workv1alpha2.TargetCluster{Name: c.name, Replicas: new(int32(c.seats))}) //nolint:gosec // at most n
		}
	}
	slices.SortFunc(targets, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
	return targets
}

func tie(uid types.UID, name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid)) // a hash cannot fail
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}

// queue is a heap of candidates, whose turn it is first.
type queue []candidate

func (q *queue) Len() int      { return len(*q) }
func (q *queue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }
func (q *queue) Less(i, j int) bool {
	a, b := (*q)[i], (*q)[j]
	return cmp.Or(
		cmp.Compare(b.weight*(2*a.seats+1), a.weight*(2*b.seats+1)),
		cmp.Compare(b.weight, a.weight),
		cmp.Compare(a.tie, b.tie),
		strings.Compare(a.name, b.name),
	) < 0
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
