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
	affinity    *policy.Affinity
	named       []string // by the affinity, without those that it excludes
	tolerations []corev1.Toleration
	trusted     bool // an administrator wrote it

	divided, dynamic bool
	weights          []weight // of the static weight list; nil when there is none

	// What cannot be read; the clusters are then all rejected.
	wrongAffinity, wrongWeights error
}

type weight struct {
	affinity *policy.Affinity
	weight   int64
}

// Compile reads a placement. What of it cannot be read is said by the verdicts.
func Compile(p policyv1alpha1.Placement) *Placement {
	c := &Placement{tolerations: p.ClusterTolerations}
	c.affinity, c.wrongAffinity = policy.CompileAffinity(p.ClusterAffinity)
	if p.ClusterAffinity != nil && c.wrongAffinity == nil {
		c.named = slices.DeleteFunc(slices.Clone(p.ClusterAffinity.ClusterNames), c.affinity.Excludes)
	}
	s := p.ReplicaScheduling
	c.divided = s != nil && s.ReplicaSchedulingType == policyv1alpha1.Divided
	if !c.divided || s.WeightPreference == nil {
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

// Trusted is the same placement, written by an administrator: its tolerations count behind every
// fence.
func (p *Placement) Trusted() *Placement {
	trusted := *p
	trusted.trusted = true
	return &trusted
}

// Divided is true when replicas are shared out among the clusters.
func (p *Placement) Divided() bool { return p.divided }

// Dynamic is true when they are shared out by free capacity.
func (p *Placement) Dynamic() bool { return p.dynamic }

// Selects says whether the affinity selects a cluster.
func (p *Placement) Selects(c *Cluster) bool { return p.wrongAffinity == nil && matches(p.affinity, c) }

func matches(a *policy.Affinity, c *Cluster) bool {
	return a.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
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
	r := Request{Placement: p, Kind: kind, Fence: fence, Replicas: new(int32(1))}
	was, is := r.judge(before, placed), r.judge(after, placed)
	if is&was == was && is&^was&^(1<<reachable|1<<apiKnown) == 0 {
		is = was // at most it ceased to answer
	}
	return was != is || p.weigh(before) != p.weigh(after) || placed && r.closed(before) != r.closed(after)
}
