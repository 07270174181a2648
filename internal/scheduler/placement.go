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

// term is one group of clusters. An object is placed in one term only.
type term struct {
	name  string // "" for the single group of a clusterAffinity
	tiers []*policy.Affinity
}

type weight struct {
	affinity *policy.Affinity
	weight   int64
}

// Compile compiles a placement. It returns no error: verdicts report the invalid parts.
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

// namedBy returns the names of clusters that the affinities list and do not exclude, sorted.
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

// Trusted returns a copy of the placement for a policy that an administrator wrote: a Fence does
// not restrict its tolerations.
func (p *Placement) Trusted() *Placement {
	trusted := *p
	trusted.trusted = true
	return &trusted
}

// Divided reports whether the replicas are divided among the clusters.
func (p *Placement) Divided() bool { return p.divided }

// ByCapacity reports whether replicas are divided by free capacity.
func (p *Placement) ByCapacity() bool { return p.dynamic || p.aggregated }

// Once reports whether an object with several components is placed in one cluster only. Components
// are not divided, so several clusters would each run all of them.
func (p *Placement) Once() bool { return p.divided || p.single() }

// OnceByCapacity reports whether such an object is placed in a cluster with capacity for all its
// components together.
func (p *Placement) OnceByCapacity() bool { return p.ByCapacity() || p.single() && p.weights == nil }

// single reports whether a spread constraint limits an object to one cluster.
func (p *Placement) single() bool {
	return slices.ContainsFunc(p.limits, func(l limit) bool { return l.field == policyv1alpha1.SpreadByCluster && l.max == 1 })
}

// Chooses reports whether clusters are chosen among those that pass the filters.
func (p *Placement) Chooses() bool { return len(p.terms) > 1 || len(p.limits) > 0 }

// Selects reports whether an affinity selects the cluster; with clusterAffinities, any group's.
func (p *Placement) Selects(c *Cluster) bool {
	return slices.ContainsFunc(p.terms, func(t term) bool { return t.tier(c) != noTier })
}

func matches(a *policy.Affinity, c *Cluster) bool {
	return a.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// noTier is the tier of a cluster that a term does not select.
const noTier = -1

// tier returns the index of the first of the term's affinities that selects the cluster, or noTier.
func (t *term) tier(c *Cluster) int8 {
	for i, a := range t.tiers {
		if matches(a, c) {
			return int8(i)
		}
	}
	return noTier
}

// term returns the index of the term with the name, or 0 if there is none.
func (p *Placement) term(name string) int {
	return max(0, slices.IndexFunc(p.terms, func(t term) bool { return t.name == name }))
}

// weigh returns the greatest weight that an entry of the static weight list gives the cluster; 1 if
// there is no list.
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

// Concerns reports whether a change of a cluster may change where an object of the kind is
// placed, or its verdicts. before is nil for a new cluster, after for a removed one. fence may be
// nil. placed is true if the object is in the cluster. A cluster that stops answering changes
// nothing: the object stays where it is placed, and no object waits for a cluster to be
// unreachable. Nor does a cluster that is closed before and after, unless the object is in it.
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
	if !p.Selects(before) && !p.Selects(after) {
		return false
	}
	if !before.Bounds.Equal(after.Bounds) {
		return true // Bounds are judged for each object
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
		is = was // at most the cluster stopped answering
	}
	return was != is || p.weigh(before) != p.weigh(after) || placed && r.closed(before) != r.closed(after)
}
