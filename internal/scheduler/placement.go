package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
)

// Placement is the placement of a policy, compiled once for many decisions. It is immutable and may
// be shared.
type Placement struct {
	terms       []term   // in order; at least one, unless wrongAffinity is set
	named       []string // clusters that the affinities name and do not exclude, sorted
	limits      []limit  // from the spread constraints
	tolerations []corev1.Toleration
	trusted     bool // an administrator wrote the policy

	divided, dynamic, aggregated bool
	weights                      []weight // from the static weight list; nil: there is no list

	// Errors of invalid parts. wrongAffinity makes the filters reject all clusters, wrongWeights
	// does so for objects whose replicas are divided.
	wrongAffinity, wrongWeights error

	memo *memo
}

// term is one group of clusters that a policy selects: the clusterAffinity, or one of the
// clusterAffinities. tiers are the affinity of the group and its overflowAffinities. An object is
// placed in one term only.
type term struct {
	name  string // "" for the single group of a clusterAffinity
	tiers []*policy.Affinity
}

// weight is an entry of the static weight list.
type weight struct {
	affinity *policy.Affinity
	weight   int64
}

// Compile compiles the placement of a policy. It returns no error: the verdicts of decisions report
// the invalid parts. p must not be changed afterwards.
func Compile(p policyv1alpha1.Placement) *Placement {
	c := &Placement{tolerations: p.ClusterTolerations, memo: &memo{}}
	if c.terms, c.wrongAffinity = compileTerms(p); c.wrongAffinity == nil {
		c.named = namedBy(p, c.terms)
	}
	for _, s := range p.SpreadConstraints {
		c.limits = append(c.limits, newLimit(s))
	}
	s := p.ReplicaScheduling
	c.divided = s != nil && s.ReplicaSchedulingType == policyv1alpha1.Divided
	if !c.divided {
		return c
	}
	if c.aggregated = s.ReplicaDivisionPreference == policyv1alpha1.Aggregated; c.aggregated || s.WeightPreference == nil {
		return c
	}
	c.dynamic = s.WeightPreference.DynamicWeight != ""
	if s.WeightPreference.StaticWeightList != nil {
		c.weights = []weight{}
	}
	for i, entry := range s.WeightPreference.StaticWeightList {
		a, err := policy.CompileAffinity(&entry.TargetCluster)
		if err != nil {
			c.wrongWeights = fmt.Errorf("staticWeightList[%d].targetCluster.%w", i, err)
			return c
		}
		c.weights = append(c.weights, weight{affinity: a, weight: entry.Weight})
	}
	return c
}

// compileTerms compiles the affinities to terms, in order. The error names the invalid field.
func compileTerms(p policyv1alpha1.Placement) ([]term, error) {
	if len(p.ClusterAffinities) == 0 {
		a, err := policy.CompileAffinity(p.ClusterAffinity)
		if err != nil {
			return nil, fmt.Errorf("clusterAffinity.%w", err)
		}
		return []term{{tiers: []*policy.Affinity{a}}}, nil
	}
	var terms []term
	for i := range p.ClusterAffinities {
		t := &p.ClusterAffinities[i]
		a, err := policy.CompileAffinity(&t.ClusterAffinity)
		if err != nil {
			return nil, fmt.Errorf("clusterAffinities[%d].%w", i, err)
		}
		tiers := []*policy.Affinity{a}
		for j := range t.OverflowAffinities {
			a, err := policy.CompileAffinity(&t.OverflowAffinities[j].ClusterAffinity)
			if err != nil {
				return nil, fmt.Errorf("clusterAffinities[%d].overflowAffinities[%d].%w", i, j, err)
			}
			tiers = append(tiers, a)
		}
		terms = append(terms, term{name: t.AffinityName, tiers: tiers})
	}
	return terms, nil
}

// namedBy returns, sorted, the cluster names that the affinities list and do not exclude.
func namedBy(p policyv1alpha1.Placement, terms []term) []string {
	var names []string
	add := func(affinity *policyv1alpha1.ClusterAffinity, read *policy.Affinity) {
		if affinity == nil {
			return
		}
		for _, name := range affinity.ClusterNames {
			if !read.Excludes(name) {
				names = append(names, name)
			}
		}
	}
	if len(p.ClusterAffinities) == 0 {
		add(p.ClusterAffinity, terms[0].tiers[0])
	}
	for i := range p.ClusterAffinities {
		t := &p.ClusterAffinities[i]
		add(&t.ClusterAffinity, terms[i].tiers[0])
		for j := range t.OverflowAffinities {
			add(&t.OverflowAffinities[j].ClusterAffinity, terms[i].tiers[j+1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Trusted returns a copy of the placement for a policy that an administrator wrote, a
// ClusterPropagationPolicy: a Fence does not restrict its tolerations.
func (p *Placement) Trusted() *Placement {
	trusted := *p
	trusted.trusted = true
	return &trusted
}

// Divided reports whether the policy divides the replicas of an object among its clusters.
func (p *Placement) Divided() bool { return p.divided }

// ByCapacity reports whether replicas are divided by free capacity: with dynamic weights, or
// Aggregated.
func (p *Placement) ByCapacity() bool { return p.dynamic || p.aggregated }

// Once reports whether an object with several components is placed in one cluster only: the
// placement divides replicas, or a spread constraint allows one cluster. Components are not
// divided, so several clusters would each run all of them.
func (p *Placement) Once() bool { return p.divided || p.single() }

// OnceByCapacity reports whether an object with several components that is placed in one cluster
// gets a cluster with free capacity for all its components together. It has a meaning only if Once
// is true.
func (p *Placement) OnceByCapacity() bool { return p.ByCapacity() || p.single() && p.weights == nil }

// single reports whether a spread constraint by cluster has the maximum 1, so that an object is
// placed in one cluster.
func (p *Placement) single() bool {
	return slices.ContainsFunc(p.limits, func(l limit) bool { return l.field == policyv1alpha1.SpreadByCluster && l.max == 1 })
}

// Chooses reports whether the object may be placed in only some of the clusters that pass the
// filters, because the placement has several groups of clusterAffinities or spread constraints.
func (p *Placement) Chooses() bool { return len(p.terms) > 1 || len(p.limits) > 0 }

// Selects reports whether an affinity of the placement selects the cluster; with clusterAffinities,
// the affinity of any group. It is false for an invalid affinity.
func (p *Placement) Selects(c *Cluster) bool {
	return slices.ContainsFunc(p.terms, func(t term) bool { return t.tier(c) != noTier })
}

// matches reports whether an affinity selects the cluster.
func matches(a *policy.Affinity, c *Cluster) bool {
	return a.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// noTier is the tier of a cluster that no affinity of a term selects.
const noTier = -1

// tier returns the tier of a cluster in the term: the index of the first affinity of the term that
// selects the cluster, or noTier.
func (t *term) tier(c *Cluster) int8 {
	for i, a := range t.tiers {
		if matches(a, c) {
			return int8(i)
		}
	}
	return noTier
}

// term returns the index in p.terms of the group with this name; 0 if there is none.
func (p *Placement) term(name string) int {
	return max(0, slices.IndexFunc(p.terms, func(t term) bool { return t.name == name }))
}

// weigh returns the greatest weight that an entry of the static weight list gives the cluster;
// 0 if no entry selects it, and 1 if there is no list.
func (p *Placement) weigh(c *Cluster) int64 {
	if p.weights == nil {
		return 1
	}
	var greatest int64
	for i := range p.weights {
		if w := &p.weights[i]; w.weight > greatest && matches(w.affinity, c) {
			greatest = w.weight
		}
	}
	return greatest
}

// Concerns reports whether a change of a cluster may change where an object of the kind is placed,
// or its verdicts. before is nil for a new cluster, after for a removed one. placed is true if the
// object is in the cluster. fence is that of the object's namespace; nil: no restriction.
//
// Concerns is false if the cluster only stops answering: the object stays where it is placed,
// unless a taint evicts it, and no object waits for a cluster to be unreachable. It is also false
// if the fence closes the cluster before and after the change, and the object is not in the
// cluster.
func (p *Placement) Concerns(before, after *Cluster, kind schema.GroupVersionKind, fence Fence, placed bool) bool {
	if !placed && fence != nil && (before == nil || !fence.Allows(before)) && (after == nil || !fence.Allows(after)) {
		return false
	}
	if before == nil || after == nil || before.UID != after.UID {
		either := after
		if either == nil {
			either = before
		}
		return placed || before != nil && p.Selects(before) || after != nil && p.Selects(after) ||
			slices.Contains(p.named, either.Name)
	}
	if before.Leaving != after.Leaving && placed {
		return true
	}
	if placed {
		if !slices.EqualFunc(p.Dues(before, fence), p.Dues(after, fence), Due.Equal) {
			return true
		}
	}
	if !p.Selects(before) && !p.Selects(after) {
		return false
	}
	// A toleration that is over closes the cluster, and no change of the fleet shows that.
	if !slices.EqualFunc(p.ending(before, fence), p.ending(after, fence), Due.Equal) {
		return true
	}
	if !before.Bounds.Equal(after.Bounds) {
		return true // whether Bounds admit an object depends on its namespace
	}
	for i := range p.terms {
		if p.terms[i].tier(before) != p.terms[i].tier(after) {
			return true
		}
	}
	if slices.ContainsFunc(p.limits, func(l limit) bool { return !l.alike(before, after) }) {
		return true
	}
	r := Request{Placement: p, Kind: kind, Fence: fence, Replicas: new(int32(1))}
	was, is := r.judge(before, r.facts(before, placed)), r.judge(after, r.facts(after, placed))
	if is&was == was && is&^was&^(1<<reachable|1<<apiKnown) == 0 {
		is = was // the only difference: the cluster stopped answering
	}
	return was != is || p.weigh(before) != p.weigh(after) || placed && r.closed(before) != r.closed(after)
}
