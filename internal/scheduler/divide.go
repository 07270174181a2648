package scheduler

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// maxWeight is the maximum of a weight and of a capacity in the division of replicas. It keeps
// products of weights and replicas within 63 bits.
const maxWeight = 1 << 30

// option is a cluster that passed the filters, so that the object may be placed in it and get
// replicas.
type option struct {
	cluster  *Cluster
	at       int   // index in attempt.clusters
	has      int64 // current replicas
	capacity int64 // free capacity, in replicas
	lack     *lack // why the capacity is not larger; nil: the nodes are full
	weight   int64 // by staticWeightList
	tier     int8
	placed   bool  // the object is in the cluster, perhaps with 0 replicas
	keep     bool  // the object is in the cluster, and a decision that is not fresh keeps it there
	blind    bool  // has replicas, and unknown free capacity
	needed   bool  // chosen to meet the minimums of the spread constraints; gets a replica first
	rank     int32 // of its groups by total capacity; 0: the groups with the most, see rank
	tie      uint64
}

// byCapacity reports whether the replicas of the object are divided by the free capacity of the
// clusters.
func (r *Request) byCapacity() bool {
	return r.divided() && *r.Replicas > 0 && (r.Placement.ByCapacity() || r.Components != nil && r.Placement.OnceByCapacity())
}

// assign divides the replicas among the clusters that passed the filters (a.options). It sets
// targets or, if nothing can be placed, why. It also sets shortage, unspread and cramped.
func (a *attempt) assign(r *Request) {
	limited := len(r.Placement.limits) > 0
	if a.cramped = r.byCapacity(); !a.cramped {
		a.choose(r, a.options)
		return
	}
	for i := range a.options {
		o := &a.options[i]
		// A cluster that does not answer keeps its replicas and gets no more.
		if n, why, known := r.fits(o.cluster, o.placed); known && o.cluster.Reachable {
			if o.capacity = min(max(n, 0), maxWeight); why != (lack{}) {
				o.lack = new(why)
			}
		} else {
			o.blind = o.has > 0
		}
		o.keep = o.keep && o.has > 0 || o.blind
	}
	if !limited {
		a.choose(r, a.options)
		return
	}
	having := slices.DeleteFunc(slices.Clone(a.options), func(o option) bool { return o.has+o.capacity == 0 })
	if len(having) == 0 {
		a.targets, a.shortage = []workv1alpha2.TargetCluster{}, r.short(0)
		return
	}
	if running(having) < int64(*r.Replicas) {
		rank(r.Placement.limits, having)
	}
	loose := slices.Clone(having)
	if a.choose(r, having); a.shortage == "" {
		return
	}
	// Spread constraints may keep the object in full clusters while other clusters have capacity. So
	// the choice is repeated as if no cluster kept the object. A cluster with unknown capacity does
	// not count as full.
	if a.blind() == "" {
		steady := *a
		for i := range loose {
			loose[i].keep = false
		}
		if a.choose(r, loose); a.targets == nil || a.shortage != "" {
			*a = steady
		}
	}
	// Clusters that were chosen for their groups may be full, too. So the choice is repeated with its
	// own result as the current placement, as long as more replicas fit each time.
	for range mostRepetitions {
		if a.shortage == "" {
			return
		}
		best := *a
		keep(having, best.targets)
		if a.choose(r, having); a.targets == nil || total(a.targets) <= total(best.targets) {
			*a = best
			return
		}
	}
}

// running returns the number of replicas in the clusters that keep the object.
func running(options []option) (n int64) {
	for i := range options {
		if options[i].keep {
			n += options[i].has
		}
	}
	return n
}

// blind returns the name of a cluster that keeps replicas although its free capacity is unknown; ""
// if there is none. While there is such a cluster, it is also unknown whether the remaining
// replicas fit.
func (a *attempt) blind() string {
	for i := range a.options {
		if o := &a.options[i]; o.blind && (a.targets == nil || among(a.targets, o.cluster.Name)) {
			return o.cluster.Name
		}
	}
	return ""
}

// keep sets the field keep of the options whose clusters are in targets, and clears it on all
// others. The field needed is cleared on all options. The targets must be sorted by name. The next
// choice then starts from targets as the current placement.
func keep(options []option, targets []workv1alpha2.TargetCluster) {
	for i := range options {
		o := &options[i]
		o.keep, o.needed = among(targets, o.cluster.Name), false
	}
}

// among reports whether a cluster is one of the targets, which must be sorted by name.
func among(targets []workv1alpha2.TargetCluster, cluster string) bool {
	_, found := slices.BinarySearchFunc(targets, cluster, func(t workv1alpha2.TargetCluster, name string) int {
		return strings.Compare(t.Name, name)
	})
	return found
}

// total returns the sum of the replicas of the targets.
func total(targets []workv1alpha2.TargetCluster) (sum int64) {
	for _, t := range targets {
		sum += current(t)
	}
	return sum
}

// mostRepetitions limits how often a choice is repeated with its own result as the current
// placement. The result no longer changes after three repetitions.
const mostRepetitions = 4

// choose selects options by the spread constraints and divides the replicas among the selected
// ones. It sets targets, shortage, why and unspread, and changes the order of options and their
// fields keep and needed.
func (a *attempt) choose(r *Request, options []option) {
	a.targets, a.shortage, a.why, a.unspread = nil, "", "", nil
	limits := r.Placement.limits
	if len(limits) == 0 {
		a.targets, a.shortage = r.share(options)
		return
	}
	for i := range options {
		options[i].tie = tie(r.UID, options[i].cluster.Name)
	}
	byWeight := r.divided() && *r.Replicas > 0 && !a.cramped
	for range mostRepetitions {
		slices.SortFunc(options, func(x, y option) int { return r.prefer(&x, &y) })
		chosen, why := spread(limits, options)
		if why != "" {
			a.targets, a.why = nil, why
			return
		}
		a.unspread = make([]bool, len(a.clusters))
		for i := range options {
			a.unspread[options[i].at] = true
		}
		for i := range chosen {
			a.unspread[chosen[i].at] = false
		}
		if a.cramped || byWeight && needed(chosen) > *r.Replicas {
			fewest(limits, chosen, *r.Replicas)
		}
		slices.SortFunc(chosen, func(x, y option) int { return x.at - y.at })
		before := a.targets
		if a.targets, a.shortage = r.share(chosen); !byWeight || slices.EqualFunc(before, a.targets, same) {
			return
		}
		// A cluster that got no replica leaves its place in a group to another cluster. The next
		// decision starts from this result, and must not change it.
		keep(options, a.targets)
	}
}

// same reports whether two targets have the same cluster and number of replicas.
func same(a, b workv1alpha2.TargetCluster) bool { return a.Name == b.Name && current(a) == current(b) }

// prefer compares two options for slices.SortFunc, and is negative if a comes first. Options that
// keep the object come first, then those with the lower tier, then those whose groups have more
// total capacity. Then the greater worth decides: the weight or the capacity.
func (r *Request) prefer(a, b *option) int {
	if a.keep != b.keep {
		if a.keep {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.rank, b.rank), cmp.Compare(r.worth(b), r.worth(a)), cmp.Compare(a.tie, b.tie), strings.Compare(a.cluster.Name, b.cluster.Name))
}

// worth returns the number by which prefer compares options. It is the weight or, if replicas are
// divided by capacity, the replicas that the cluster has and, unless it keeps the object, its free
// capacity.
func (r *Request) worth(o *option) int64 {
	switch {
	case !r.byCapacity():
		return o.weight
	case o.keep:
		return o.has
	default:
		return o.has + o.capacity
	}
}

// share divides the object's replicas among the options, and returns a target for each option that
// gets the object, in the order of the options. If fewer replicas than requested are placed,
// shortage is a message for users; else "".
func (r *Request) share(options []option) (targets []workv1alpha2.TargetCluster, shortage string) {
	name := func(i int) string { return options[i].cluster.Name }
	switch {
	case !r.divided():
		return every(len(options), name, r.Replicas), ""
	case *r.Replicas <= 0:
		// Nothing is divided. The object stays in its clusters with 0 replicas.
		return every(len(options), name, new(int32(0))), ""
	case r.byCapacity():
		return r.shareByCapacity(options)
	}
	candidates := make([]candidate, len(options))
	for i := range options {
		o := &options[i]
		candidates[i] = candidate{i: i, name: o.cluster.Name, weight: o.weight}
		if o.needed {
			candidates[i].seats = 1
		}
	}
	return share(r.UID, candidates, *r.Replicas), ""
}

// every returns targets for n clusters with the same number of replicas each; with nil the targets
// have no number. name returns the name of cluster i.
func every(n int, name func(i int) string, replicas *int32) []workv1alpha2.TargetCluster {
	targets := make([]workv1alpha2.TargetCluster, n)
	for i := range targets {
		targets[i].Name = name(i)
		if replicas != nil {
			targets[i].Replicas = new(*replicas)
		}
	}
	return targets
}

// shareByCapacity divides replicas by free capacity and moves as few as possible. Replicas that run
// and still fit stay. If the object grows, only the new replicas are placed. If it shrinks, each
// cluster loses in proportion to its replicas; with Aggregated, the clusters with the fewest lose
// all of theirs first. Lower tiers are filled first and emptied last. If not all replicas fit, as
// many as fit are placed, and shortage is a message for users. Replicas in a cluster with unknown
// capacity stay, even if the decision is fresh.
func (r *Request) shareByCapacity(options []option) (targets []workv1alpha2.TargetCluster, shortage string) {
	has, capacity := make([]candidate, len(options)), make([]candidate, len(options))
	var running, free int64
	last := int8(0)
	for i := range options {
		o := &options[i]
		has[i] = candidate{i: i, name: o.cluster.Name, weight: o.has}
		capacity[i] = candidate{i: i, name: o.cluster.Name, weight: o.capacity}
		if r.Fresh && !o.blind {
			// For a fresh decision, the capacity of the running replicas counts as free.
			has[i].weight, capacity[i].weight = 0, min(o.capacity+o.has, maxWeight)
		}
		running, free, last = running+has[i].weight, free+capacity[i].weight, max(last, o.tier)
	}
	wanted := int64(*r.Replicas)
	grow := min(wanted-running, free)
	for tier := int8(0); tier <= last && grow > 0; tier++ {
		grow -= r.grow(options, has, capacity, tier, grow)
	}
	shrink := running - wanted
	for tier := last; tier >= 0 && shrink > 0; tier-- {
		shrink -= r.shrink(options, has, capacity, tier, shrink)
	}
	give(options, has, capacity)
	placed := min(wanted, running+free)
	if placed < wanted {
		shortage = r.short(placed)
	}
	targets = make([]workv1alpha2.TargetCluster, 0, min(len(options), int(placed)))
	for i := range has {
		if n := has[i].weight; n > 0 {
			targets = append(targets, workv1alpha2.TargetCluster{Name: has[i].name, Replicas: new(int32(n))}) //nolint:gosec // at most *r.Replicas
		}
	}
	return targets, shortage
}

// short returns the message for users that only placed replicas, fewer than requested, are placed.
func (r *Request) short(placed int64) string {
	if r.Components != nil {
		return "no cluster has free capacity for all of its components together"
	}
	return fmt.Sprintf("%d of %d replicas are placed, and no more fit", placed, *r.Replicas)
}

// grow adds at most n replicas to the clusters of a tier, and returns how many it added. In has and
// capacity, which have the replicas and the free capacity of each option as weights, it moves them
// from capacity to has.
func (r *Request) grow(options []option, has, capacity []candidate, tier int8, n int64) int64 {
	var here []candidate
	var free int64
	for i := range options {
		if options[i].tier == tier && capacity[i].weight > 0 {
			here, free = append(here, capacity[i]), free+capacity[i].weight
		}
	}
	n = min(n, free)
	if r.Placement.aggregated {
		here = r.narrow(here, n, func(c *candidate) bool { return has[c.i].weight > 0 })
	}
	for _, c := range seat(r.UID, here, int32(n)) { //nolint:gosec // at most *r.Replicas
		has[c.i].weight += c.seats
		capacity[c.i].weight -= c.seats
	}
	return n
}

// shrink removes at most n replicas from the clusters of a tier, and returns how many it removed.
// In has and capacity, which have the replicas and the free capacity of each option as weights, it
// moves them from has to capacity.
func (r *Request) shrink(options []option, has, capacity []candidate, tier int8, n int64) int64 {
	var here []candidate
	var held int64
	for i := range options {
		if options[i].tier == tier && has[i].weight > 0 {
			here, held = append(here, has[i]), held+has[i].weight
			capacity[i].weight, has[i].weight = capacity[i].weight+has[i].weight, 0
		}
	}
	n = min(n, held)
	if r.Placement.aggregated {
		here = r.narrow(here, held-n, func(*candidate) bool { return false })
	}
	for _, c := range seat(r.UID, here, int32(held-n)) { //nolint:gosec // at most *r.Replicas, or what is left of more tiers
		has[c.i].weight = c.seats
		capacity[c.i].weight -= c.seats
	}
	return n
}

// narrow returns the fewest candidates whose weights add up to n: first those for which comesFirst
// is true, then those with the greatest weight. If all together have less than n, it returns all.
// It reorders candidates.
func (r *Request) narrow(candidates []candidate, n int64, comesFirst func(*candidate) bool) []candidate {
	slices.SortFunc(candidates, func(a, b candidate) int {
		if x, y := comesFirst(&a), comesFirst(&b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(tie(r.UID, a.name), tie(r.UID, b.name)), strings.Compare(a.name, b.name))
	})
	for i := range candidates {
		if n <= 0 {
			return candidates[:i]
		}
		n -= candidates[i].weight
	}
	return candidates
}

// give moves one replica to each cluster that is needed for the minimum of a spread constraint and
// has no replica. The replica comes from the last tier in which a cluster can lose one, and there
// from the cluster with the most replicas. has and capacity have the replicas and the free capacity
// of each option as weights.
func give(options []option, has, capacity []candidate) {
	for i := range options {
		if !options[i].needed || has[i].weight > 0 || capacity[i].weight <= 0 {
			continue
		}
		giver := -1
		for j := range options {
			spare := has[j].weight > 1 || has[j].weight == 1 && !options[j].needed
			if spare && (giver < 0 || cmp.Or(
				cmp.Compare(options[j].tier, options[giver].tier), cmp.Compare(has[j].weight, has[giver].weight), cmp.Compare(options[j].tie, options[giver].tie),
			) > 0) {
				giver = j
			}
		}
		if giver < 0 {
			return
		}
		has[giver].weight--
		has[i].weight++
	}
}

// candidate is a cluster in the division of replicas by weight. Callers set the weight to a static
// weight, a free capacity or a number of replicas.
type candidate struct {
	i      int // index in the options
	name   string
	weight int64
	seats  int64 // first the guaranteed replicas, then the assigned ones
	tie    uint64
}

// share divides n replicas among the candidates in proportion to their weights, and returns the
// targets sorted by name. Candidates that get no replica are left out. If no candidate has a
// weight, the result is empty.
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

// seat divides n replicas by Webster's method: one after another, each to the candidate with the
// greatest weight/(2·seats+1). It returns copies of the candidates, in no order, with the number of
// replicas in seats. Candidates without a weight are left out. The seats that a candidate has at
// the call are guaranteed. uid is that of the object and breaks ties.
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
	// Rounding adds at most half a replica to each candidate. So every candidate is certain of its
	// rounded share of n minus the number of candidates. The heap assigns only the rest, so the
	// time does not grow with n.
	left := int64(n)
	sure := left - int64(len(candidates))
	for i := range candidates {
		sure -= candidates[i].seats
	}
	sure = max(0, sure)
	for i := range candidates {
		c := &candidates[i]
		if sure > 0 {
			c.seats = max(c.seats, (2*c.weight*sure+sum)/(2*sum))
		}
		c.tie = tie(uid, c.name)
		left -= c.seats
	}
	q := queue(candidates)
	heap.Init(&q)
	for range left { // no replica is left if the guaranteed ones use up n
		q[0].seats++
		heap.Fix(&q, 0)
	}
	return q
}

// tie returns the FNV-1a hash of an object's UID and a cluster's name. It decides the order of
// clusters that are otherwise equal, so that not all objects prefer the same cluster.
func tie(uid types.UID, name string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(uid) {
		h = (h ^ uint64(uid[i])) * prime
	}
	h *= prime // stands for a zero byte between UID and name
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	return h
}

// queue is a heap of candidates. The candidate that gets the next replica is first.
type queue []candidate

func (q *queue) Len() int      { return len(*q) }
func (q *queue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }

// Less implements heap.Interface: the candidate with the greater weight/(2·seats+1) comes first.
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

// Push is required by heap.Interface. No candidate is added in practice.
func (q *queue) Push(c any) {
	if candidate, ok := c.(candidate); ok {
		*q = append(*q, candidate)
	}
}

// Pop is required by heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}
