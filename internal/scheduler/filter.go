package scheduler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"orrery.dev/orrery/internal/presence"
)

// Reasons of verdicts.
const (
	ReasonFenced         = "Fenced"         // the object's namespace may not use it
	ReasonLeaving        = "Leaving"        // the cluster is being removed
	ReasonAffinityWrong  = "AffinityWrong"  // the affinity cannot be read
	ReasonNotSelected    = "NotSelected"    // the affinity does not select it
	ReasonOtherGroup     = "OtherGroup"     // it is of another group of clusterAffinities than the one that was taken
	ReasonNoWeight       = "NoWeight"       // no staticWeightList entry selects it
	ReasonNoGroup        = "NoGroup"        // it lacks the field or label that a spread constraint is about
	ReasonTainted        = "Tainted"        // a taint is not tolerated
	ReasonUnreachable    = "Unreachable"    // the cluster does not answer
	ReasonOutOfBounds    = "OutOfBounds"    // the profile of the cluster's agent does not let the object in
	ReasonAPINotServed   = "APINotServed"   // the cluster does not serve the kind
	ReasonAPIUnknown     = "APIUnknown"     // the cluster cannot say whether it does
	ReasonAffinityGroup  = "AffinityGroup"  // no other object of its affinity group is there
	ReasonAntiAffinity   = "AntiAffinity"   // another object of its anti-affinity group is there
	ReasonUnknownCluster = "UnknownCluster" // no cluster has the name
	ReasonSpread         = "Spread"         // it fits, and the spread constraints let no more clusters in
	ReasonNoRoom         = "NoRoom"         // it fits, and no replica has room there
	ReasonNoReplicas     = "NoReplicas"     // it fits, and no replica fell to it
	ReasonStaysFenced    = "StaysFenced"    // it is Fenced by now, and what was placed there before stays
)

// rejections of one cluster: a bit for each filter that did not let it pass.
type rejections uint16

// The filters, in the order in which their reasons are told.
const (
	fenced = iota
	leaving
	affinityRead
	affinity
	otherGroup
	weightsRead
	weighed
	grouped
	taints
	bounded
	reachable
	apiServed
	apiKnown
	together
	apart
)

// filters tell whether a cluster does not pass. Where the object is already, it stays unless
// the cluster leaves or the policy does not mean it any more. A filter allocates nothing; what
// it says is put into words when somebody asks.
var filters = [...]struct {
	reason  string
	rejects func(r *Request, c *Cluster, f facts) bool
	message func(r *Request, c *Cluster) string
}{
	fenced: {
		reason:  ReasonFenced,
		rejects: func(r *Request, c *Cluster, f facts) bool { return !f.placed && r.closed(c) },
		message: func(r *Request, _ *Cluster) string { return r.Fence.Closed() },
	},
	leaving: {
		reason:  ReasonLeaving,
		rejects: func(_ *Request, c *Cluster, _ facts) bool { return c.Leaving },
		message: func(*Request, *Cluster) string { return "it is leaving the fleet" },
	},
	affinityRead: {
		reason:  ReasonAffinityWrong,
		rejects: func(r *Request, _ *Cluster, _ facts) bool { return r.Placement.wrongAffinity != nil },
		message: func(r *Request, _ *Cluster) string { return "placement." + r.Placement.wrongAffinity.Error() },
	},
	affinity: {
		reason:  ReasonNotSelected,
		rejects: func(r *Request, _ *Cluster, f facts) bool { return r.Placement.wrongAffinity == nil && !f.selected },
		message: func(r *Request, _ *Cluster) string {
			if r.Placement.grouped() {
				return "no group of clusterAffinities selects it"
			}
			return "clusterAffinity does not select it"
		},
	},
	otherGroup: {
		reason:  ReasonOtherGroup,
		rejects: func(_ *Request, _ *Cluster, f facts) bool { return f.selected && f.tier == noTier },
		message: func(r *Request, _ *Cluster) string {
			return "it is not of " + r.Placement.terms[r.term].name + ", the group of clusterAffinities that was taken"
		},
	},
	weightsRead: {
		reason:  ReasonAffinityWrong,
		rejects: func(r *Request, _ *Cluster, _ facts) bool { return r.divided() && r.Placement.wrongWeights != nil },
		message: func(r *Request, _ *Cluster) string {
			return "placement.replicaScheduling.weightPreference." + r.Placement.wrongWeights.Error()
		},
	},
	// A cluster that no entry of a static weight list selects would get no replicas.
	weighed: {
		reason: ReasonNoWeight,
		rejects: func(r *Request, _ *Cluster, f facts) bool {
			return f.weight == 0 && r.divided() && r.Placement.wrongWeights == nil
		},
		message: func(*Request, *Cluster) string { return "no entry of staticWeightList selects it" },
	},
	grouped: {
		reason: ReasonNoGroup,
		rejects: func(r *Request, c *Cluster, f facts) bool {
			return !f.placed && f.tier != noTier && len(r.Placement.limits) > 0 && r.Placement.ungrouped(c) != nil
		},
		message: func(r *Request, c *Cluster) string { return "it has no " + r.Placement.ungrouped(c).what() },
	},
	taints: {
		reason:  ReasonTainted,
		rejects: func(r *Request, c *Cluster, f facts) bool { return !f.placed && r.untolerated(c) != nil },
		message: func(r *Request, c *Cluster) string {
			t := r.untolerated(c)
			if r.Placement.tolerates(t) {
				return "taint " + t.ToString() + " may not be tolerated: " + r.Fence.Ungranted()
			}
			return "taint " + t.ToString() + " is not tolerated"
		},
	},
	bounded: {
		reason:  ReasonOutOfBounds,
		rejects: func(r *Request, c *Cluster, f facts) bool { return !f.placed && !c.Bounds.takes(r.Namespace) },
		message: func(_ *Request, c *Cluster) string { return c.Bounds.String() },
	},
	reachable: {
		reason:  ReasonUnreachable,
		rejects: func(_ *Request, c *Cluster, f facts) bool { return !f.placed && !c.Reachable },
		message: func(*Request, *Cluster) string { return "it does not answer" },
	},
	apiServed: {
		reason: ReasonAPINotServed,
		rejects: func(r *Request, c *Cluster, f facts) bool {
			return !f.placed && c.Reachable && c.Serves(r.Kind) == presence.Absent
		},
		message: func(*Request, *Cluster) string { return "it does not serve the kind" },
	},
	apiKnown: {
		reason: ReasonAPIUnknown,
		rejects: func(r *Request, c *Cluster, f facts) bool {
			return !f.placed && c.Reachable && c.Serves(r.Kind) == presence.Unknown
		},
		message: func(*Request, *Cluster) string { return "whether it serves the kind is not known" },
	},
	together: {
		reason: ReasonAffinityGroup,
		rejects: func(r *Request, c *Cluster, f facts) bool {
			return !f.placed && f.tier != noTier && len(r.Together) > 0 && !r.Together.Has(c.Name)
		},
		message: func(*Request, *Cluster) string { return "no other object of its affinity group is there" },
	},
	apart: {
		reason: ReasonAntiAffinity,
		rejects: func(r *Request, c *Cluster, f facts) bool {
			return !f.placed && f.tier != noTier && r.Apart.Has(c.Name)
		},
		message: func(*Request, *Cluster) string { return "another object of its anti-affinity group is there" },
	},
}

// judge lets every filter look at a cluster.
func (r *Request) judge(c *Cluster, f facts) rejections {
	var all rejections
	for i := range filters {
		if filters[i].rejects(r, c, f) {
			all |= 1 << i
		}
	}
	return all
}

// grouped is true when the policy has groups of clusters.
func (p *Placement) grouped() bool { return len(p.terms) > 0 && p.terms[0].name != "" }

// ungrouped is the first spread constraint that has no group for a cluster.
func (p *Placement) ungrouped(c *Cluster) *limit {
	for i := range p.limits {
		if !p.limits[i].has(c) {
			return &p.limits[i]
		}
	}
	return nil
}

// Fence says which clusters an object's namespace may use. It does not change, and can be
// compared.
type Fence interface {
	// Allows says whether objects of the namespace may be placed in a cluster, and Tolerates
	// whether the namespace's own policies may tolerate a taint of it. They allocate nothing.
	Allows(c *Cluster) bool
	Tolerates(c *Cluster, t *corev1.Taint) bool
	// Closed says why a cluster is not allowed, and Ungranted why a taint may not be tolerated.
	Closed() string
	Ungranted() string
}

// closed is true when the object's namespace may not use a cluster.
func (r *Request) closed(c *Cluster) bool { return r.Fence != nil && !r.Fence.Allows(c) }

// untolerated is the first taint of a cluster that keeps new objects out.
func (r *Request) untolerated(c *Cluster) *corev1.Taint {
	for i := range c.Taints {
		t := &c.Taints[i]
		if t.Effect != corev1.TaintEffectNoSchedule && t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if !r.Placement.tolerates(t) || r.Fence != nil && !r.Placement.trusted && !r.Fence.Tolerates(c, t) {
			return t
		}
	}
	return nil
}

// alike is true when the same taint keeps new objects out of two clusters.
func (r *Request) alike(a, b *Cluster) bool {
	x, y := r.untolerated(a), r.untolerated(b)
	return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
}

func (p *Placement) tolerates(t *corev1.Taint) bool {
	return slices.ContainsFunc(p.tolerations, func(toleration corev1.Toleration) bool { return Tolerates(toleration, t) })
}

// Tolerates says whether a toleration is one of a taint.
func Tolerates(toleration corev1.Toleration, t *corev1.Taint) bool {
	return (toleration.Effect == "" || toleration.Effect == t.Effect) &&
		(toleration.Key == "" || toleration.Key == t.Key) &&
		(toleration.Operator == corev1.TolerationOpExists ||
			(toleration.Operator == "" || toleration.Operator == corev1.TolerationOpEqual) && toleration.Value == t.Value)
}
