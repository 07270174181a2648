package scheduler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"orrery.dev/orrery/internal/presence"
)

// Reasons of verdicts.
const (
	ReasonFenced         = "Fenced"         // the object's namespace may not use the cluster
	ReasonLeaving        = "Leaving"        // the cluster is being removed
	ReasonEvicted        = "Evicted"        // a taint evicts the object
	ReasonAffinityWrong  = "AffinityWrong"  // the affinity is invalid
	ReasonNotSelected    = "NotSelected"    // the affinity does not select the cluster
	ReasonOtherGroup     = "OtherGroup"     // another group of clusterAffinities was chosen
	ReasonNoWeight       = "NoWeight"       // no staticWeightList entry selects the cluster
	ReasonNoGroup        = "NoGroup"        // lacks the field or label of a spread constraint
	ReasonTainted        = "Tainted"        // a taint is not tolerated
	ReasonUnreachable    = "Unreachable"    // the cluster does not answer
	ReasonOutOfBounds    = "OutOfBounds"    // the agent's profile does not admit the object
	ReasonAPINotServed   = "APINotServed"   // the cluster does not serve the kind
	ReasonAPIUnknown     = "APIUnknown"     // it is unknown whether the cluster serves the kind
	ReasonAffinityGroup  = "AffinityGroup"  // no other object of the affinity group is there
	ReasonAntiAffinity   = "AntiAffinity"   // another object of the anti-affinity group is there
	ReasonUnknownCluster = "UnknownCluster" // no cluster has the name
	ReasonSpread         = "Spread"         // fits, but the spread constraints admit no more
	ReasonSpreadUnmet    = "SpreadUnmet"    // fits, but no choice meets the spread constraints
	ReasonNoRoom         = "NoRoom"         // fits, but has no capacity for a replica
	ReasonNoReplicas     = "NoReplicas"     // fits, and got no replica
	ReasonStaysFenced    = "StaysFenced"    // Fenced now; what was placed before stays
)

// rejections is a set of filters that reject a cluster: bit i stands for filters[i].
type rejections uint16

// The filters, in the order in which verdicts list them.
const (
	fenced = iota
	leaving
	evicted
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

// filters decide whether a cluster is rejected; each has the reason and the message of its verdict.
// An object that is in the cluster already stays unless the cluster leaves, the policy no longer
// selects it, or a taint evicts the object. rejects allocates nothing; message is called only when
// a message is needed.
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
	evicted: {
		reason:  ReasonEvicted,
		rejects: func(r *Request, c *Cluster, f facts) bool { return f.placed && r.leaves(c) },
		message: func(r *Request, c *Cluster) string {
			if due, ok := r.Placement.Due(c, r.Fence); ok {
				return "taint " + due.Taint.ToString() + " evicts the object"
			}
			return "a taint evicts the object"
		},
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
			return "it is not in " + r.Placement.terms[r.term].name + ", the group of clusterAffinities that was chosen"
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
			if r.tolerates(c, t) {
				return "taint " + t.ToString() + " is not tolerated any longer: tolerationSeconds is over"
			}
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
		message: func(*Request, *Cluster) string { return "it is unknown whether it serves the kind" },
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

// judge returns the filters that reject the cluster; 0 if it passes all. f are the facts about the
// cluster and the object.
func (r *Request) judge(c *Cluster, f facts) rejections {
	var all rejections
	for i := range filters {
		if filters[i].rejects(r, c, f) {
			all |= 1 << i
		}
	}
	return all
}

// grouped reports whether the policy uses clusterAffinities, which are groups with names, and not
// clusterAffinity.
func (p *Placement) grouped() bool { return len(p.terms) > 0 && p.terms[0].name != "" }

// ungrouped returns the first spread constraint that puts the cluster in no group, because the
// cluster lacks the field or label; nil if there is none.
func (p *Placement) ungrouped(c *Cluster) *limit {
	for i := range p.limits {
		if !p.limits[i].has(c) {
			return &p.limits[i]
		}
	}
	return nil
}

// Fence decides which clusters the namespace of an object may use, by the hub's ClusterAccess
// objects. It is immutable and comparable.
type Fence interface {
	// Allows reports whether objects of the namespace may be placed in the cluster. Tolerates
	// reports whether policies of the namespace may tolerate a taint of the cluster. Both allocate
	// nothing.
	Allows(c *Cluster) bool
	Tolerates(c *Cluster, t *corev1.Taint) bool
	// Closed is the message why a cluster is not allowed, for users who see all clusters. Ungranted
	// is the message why a taint may not be tolerated; users of the namespace read it.
	Closed() string
	Ungranted() string
}

// closed reports whether the object's namespace may not use the cluster. It is false if the request
// has no fence.
func (r *Request) closed(c *Cluster) bool { return r.Fence != nil && !r.Fence.Allows(c) }

// untolerated returns the first taint of the cluster that keeps new objects out: its effect is
// NoSchedule or NoExecute, and the policy does not or may not tolerate it, or no longer at r.Now.
// It is nil if there is none.
func (r *Request) untolerated(c *Cluster) *corev1.Taint {
	for i := range c.Taints {
		t := &c.Taints[i]
		if t.Effect != corev1.TaintEffectNoSchedule && t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if !r.tolerates(c, t) || r.usedUp(c, t) {
			return t
		}
	}
	return nil
}

// tolerates reports whether the policy tolerates the taint of the cluster, and may do so.
func (r *Request) tolerates(c *Cluster, t *corev1.Taint) bool {
	return r.Placement.tolerates(t) && (r.Fence == nil || r.Placement.trusted || r.Fence.Tolerates(c, t))
}

// alike reports whether the taints that keep new objects out of clusters a and b are equal, so that
// both have the same verdict. Each cluster must have such a taint.
func (r *Request) alike(a, b *Cluster) bool {
	x, y := r.untolerated(a), r.untolerated(b)
	return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
}

// tolerates reports whether a toleration of the policy matches the taint.
func (p *Placement) tolerates(t *corev1.Taint) bool {
	return slices.ContainsFunc(p.tolerations, func(toleration corev1.Toleration) bool { return Tolerates(toleration, t) })
}

// Tolerates reports whether the toleration matches the taint, as Kubernetes matches them. It
// ignores TolerationSeconds. Operators other than Exists, Equal and "" match nothing.
func Tolerates(toleration corev1.Toleration, t *corev1.Taint) bool {
	return (toleration.Effect == "" || toleration.Effect == t.Effect) &&
		(toleration.Key == "" || toleration.Key == t.Key) &&
		(toleration.Operator == corev1.TolerationOpExists ||
			(toleration.Operator == "" || toleration.Operator == corev1.TolerationOpEqual) && toleration.Value == t.Value)
}
