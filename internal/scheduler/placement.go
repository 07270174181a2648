package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/policy"
)

// Placement is what a policy says about where, read once for many decisions. It does not
// change and may be shared.
type Placement struct {
	terms       []term   // in order; there is at least one
	named       []string // by the affinities, without those that they exclude
	limits      []limit  // of the spread constraints
	tolerations []corev1.Toleration
	trusted     bool // an administrator wrote it

	divided, dynamic, aggregated bool
	weights                      []weight // of the static weight list; nil when there is none

	// What cannot be read; the clusters are then all rejected.
	wrongAffinity, wrongWeights error

	memo *memo
}

// term is one of the groups of clusters of which an object is placed in one.
type term struct {
	name  string // empty for the only group of a clusterAffinity
	tiers []*policy.Affinity
}

type weight struct {
	affinity *policy.Affinity
	weight   int64
}

// Compile reads a placement. What of it cannot be read is said by the verdicts.
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

// namedBy are the clusters that the affinities of a placement name, by name.
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

// Trusted is the same placement, written by an administrator: its tolerations count behind every
// fence.
func (p *Placement) Trusted() *Placement {
	trusted := *p
	trusted.trusted = true
	return &trusted
}

// Divided is true when replicas are shared out among the clusters.
func (p *Placement) Divided() bool { return p.divided }

// ByCapacity is true when they are shared out by free capacity.
func (p *Placement) ByCapacity() bool { return p.dynamic || p.aggregated }

// Chooses is true when clusters are chosen among those that fit.
func (p *Placement) Chooses() bool { return len(p.terms) > 1 || len(p.limits) > 0 }

// Selects says whether the affinity selects a cluster; of several, any of them.
func (p *Placement) Selects(c *Cluster) bool {
	return slices.ContainsFunc(p.terms, func(t term) bool { return t.tier(c) != noTier })
}

func matches(a *policy.Affinity, c *Cluster) bool {
	return a.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// noTier is the tier of a cluster that a term does not select.
const noTier = -1

// tier is the first of a term's affinities that selects a cluster.
func (t *term) tier(c *Cluster) int8 {
	for i, a := range t.tiers {
		if matches(a, c) {
			return int8(i)
		}
	}
	return noTier
}

// term is the place of a term; of the first one when none has the name.
func (p *Placement) term(name string) int {
	return max(0, slices.IndexFunc(p.terms, func(t term) bool { return t.name == name }))
}

// weigh is the greatest weight that the static weight list gives a cluster, and 1 without
// a list.
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

// Concerns says whether a change of a cluster, from before (nil: it is new) to after (nil:
// it is gone), may change where an object of a kind is placed, behind a fence (nil: none), or
// what is said of it. placed is true when the object is in the cluster. That the cluster ceases to answer concerns
// nothing: what is placed there stays, and nobody waits for a cluster to be silent.
func (p *Placement) Concerns(before, after *Cluster, kind schema.GroupVersionKind, fence Fence, placed bool) bool {
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
		return true // what is in them is judged object by object
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
		is = was // at most it ceased to answer
	}
	return was != is || p.weigh(before) != p.weigh(after) || placed && r.closed(before) != r.closed(after)
}
