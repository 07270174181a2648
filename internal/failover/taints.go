package failover

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/policy"
)

// mostTaints is how many taints the schema of a Cluster allows.
const mostTaints = 64

// stamps are the times of the taints of a Cluster.
type stamps map[stamped]metav1.Time

// stamped identifies a taint in stamps. A taint with another value is another taint.
type stamped struct {
	key, value string
	effect     corev1.TaintEffect
}

func stampedOf(t *corev1.Taint) stamped {
	return stamped{key: t.Key, value: t.Value, effect: t.Effect}
}

// timesOf returns the times of those taints that have one.
func timesOf(taints []corev1.Taint) stamps {
	times := stamps{}
	for i := range taints {
		if t := &taints[i]; !t.TimeAdded.IsZero() {
			times[stampedOf(t)] = *t.TimeAdded
		}
	}
	return times
}

// time returns the time of a taint, or otherwise if there is none.
func (s stamps) time(t *corev1.Taint, otherwise metav1.Time) *metav1.Time {
	if at, ok := s[stampedOf(t)]; ok {
		return at.DeepCopy()
	}
	return otherwise.DeepCopy()
}

// Taints returns what spec.taints of the cluster c should be at the time now. stored is what it is.
// pull is true for a cluster with syncMode Pull. The policies, in any order, are applied in the
// order of their names, so of several for the same taint the last decides. A taint that a policy
// adds and that is stored already, with another value or not, keeps its time and its place. The
// taints of a cluster that was not probed yet, or that refuses the hub, are neither added to nor
// removed.
//
// last has the times of the taints that the result of the call before had, or nil. An update of the
// Cluster may have dropped a taint, or only its time, as a user's manifest has neither. Each taint
// that is added, and each one with the effect NoExecute and without a time, gets its time in last,
// and otherwise now.
//
// The result has the order of stored, and then new taints, but no more than a Cluster may have.
// Taints changes none of its arguments.
func Taints(
	c *fleet.Cluster, pull bool, policies []*policyv1alpha1.ClusterTaintPolicy, stored []corev1.Taint, last stamps, now time.Time,
) []corev1.Taint {
	added := metav1.NewTime(now.UTC().Truncate(time.Second)) // the API stores seconds
	decided, slots := decideTaints(c, pull, policies)
	taints := make([]corev1.Taint, 0, len(stored)+len(slots))
	for _, t := range stored {
		if by, ok := decided[slotOf(&t)]; ok {
			if by == nil {
				continue
			}
			t.Value = by.Value
		}
		taints = append(taints, t)
	}
	for _, id := range slots {
		present := slices.ContainsFunc(stored, func(t corev1.Taint) bool { return slotOf(&t) == id })
		if by := decided[id]; by != nil && !present && len(taints) < mostTaints {
			t := corev1.Taint{Key: by.Key, Value: by.Value, Effect: by.Effect}
			t.TimeAdded = last.time(&t, added)
			taints = append(taints, t)
		}
	}
	stamp(taints, last, added)
	return taints
}

// stamp sets the time of each taint with the effect NoExecute that has none, to that in last or
// otherwise to at.
func stamp(taints []corev1.Taint, last stamps, at metav1.Time) {
	for i := range taints {
		if t := &taints[i]; t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded.IsZero() {
			t.TimeAdded = last.time(t, at)
		}
	}
}

// slot is what a cluster has at most one taint of: a key and an effect.
type slot struct {
	key    string
	effect corev1.TaintEffect
}

func slotOf(t *corev1.Taint) slot { return slot{key: t.Key, effect: t.Effect} }

// decideTaints returns which taints the policies add to the cluster c (the taint) and remove from
// it (nil). slots has the keys of the result in the order in which the policies name them. The
// result is empty for a cluster that was not probed yet.
func decideTaints(
	c *fleet.Cluster, pull bool, policies []*policyv1alpha1.ClusterTaintPolicy,
) (decided map[slot]*policyv1alpha1.Taint, slots []slot) {
	if !c.Reachable && !c.Lost {
		return nil, nil
	}
	conditions := conditionsOf(c, pull)
	decided = map[slot]*policyv1alpha1.Taint{}
	for _, p := range slices.SortedFunc(slices.Values(policies), func(a, b *policyv1alpha1.ClusterTaintPolicy) int {
		return cmp.Compare(a.Name, b.Name)
	}) {
		removes := matches(p.Spec.RemoveOnConditions, conditions)
		if !removes && !matches(p.Spec.AddOnConditions, conditions) || !targets(p, c) {
			continue
		}
		for i := range p.Spec.Taints {
			t := &p.Spec.Taints[i]
			id := slot{key: t.Key, effect: t.Effect}
			if _, ok := decided[id]; !ok {
				slots = append(slots, id)
			}
			if removes {
				t = nil
			}
			decided[id] = t
		}
	}
	return decided, slots
}

// targets reports whether a policy is for the cluster c. A policy with an invalid targetClusters is
// for no cluster.
func targets(p *policyv1alpha1.ClusterTaintPolicy, c *fleet.Cluster) bool {
	affinity, err := policy.CompileAffinity(p.Spec.TargetClusters)
	return err == nil && affinity.Selects(c.Name, c.Labels, c.Provider, c.Region, c.Zones)
}

// conditionsOf returns the conditions of a cluster, which was probed, as ClusterTaintPolicies match
// them. They are about the cluster and not about the hub, so they are not those in the status of
// the Cluster: the mirror, certificates and Operations do not count. Reachable of a lost cluster is
// both False and Unknown, which the status of the Cluster says: In matches if one of them is among
// the values, and NotIn if none is.
func conditionsOf(c *fleet.Cluster, pull bool) map[string][]metav1.ConditionStatus {
	status := func(is bool) metav1.ConditionStatus {
		if is {
			return metav1.ConditionTrue
		}
		return metav1.ConditionFalse
	}
	ready := status(c.Reachable && c.Joined)
	if c.Lost && pull {
		ready = metav1.ConditionUnknown // as in Karmada: the agent does not report
	}
	reachable := []metav1.ConditionStatus{status(c.Reachable)}
	if c.Lost {
		reachable = append(reachable, metav1.ConditionUnknown)
	}
	return map[string][]metav1.ConditionStatus{
		clusterv1alpha1.ConditionReady:     {ready},
		clusterv1alpha1.ConditionReachable: reachable,
		clusterv1alpha1.ConditionJoined:    {status(c.Joined)},
	}
}

// matches reports whether all of the wanted conditions match. It is false if there are none, and
// for a condition with an unknown type or operator.
func matches(wanted []policyv1alpha1.MatchCondition, conditions map[string][]metav1.ConditionStatus) bool {
	for _, w := range wanted {
		statuses, known := conditions[w.ConditionType]
		among := slices.ContainsFunc(statuses, func(s metav1.ConditionStatus) bool { return slices.Contains(w.StatusValues, s) })
		switch {
		case !known:
			return false
		case w.Operator == policyv1alpha1.MatchConditionOpIn && among, w.Operator == policyv1alpha1.MatchConditionOpNotIn && !among:
		default:
			return false
		}
	}
	return len(wanted) > 0
}
