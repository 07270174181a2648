package scheduler

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// DefaultToleration is how long an object stays in a cluster with a taint of a failure, if no
// toleration of its policy matches that taint. It is the default of Kubernetes for pods and of
// Karmada for policies.
const DefaultToleration = 300 * time.Second

// Due says when an object has to leave a cluster, and the taint that requires it.
type Due struct {
	// Taint has the effect NoExecute. It is that of the Cluster: do not change it.
	Taint *corev1.Taint
	// At is when the toleration of the taint ends, which lasts for Toleration.
	At         time.Time
	Toleration time.Duration
}

// Equal reports whether both are about the same time, and about taints with the same content.
func (d Due) Equal(other Due) bool {
	return d.At.Equal(other.At) && d.Taint.ToString() == other.Taint.ToString()
}

// Due returns the first of Dues; false if there is none.
func (p *Placement) Due(c *Cluster, fence Fence) (Due, bool) {
	all := p.Dues(c, fence)
	if len(all) == 0 {
		return Due{}, false
	}
	return all[0], true
}

// Dues returns when an object with this placement has to leave the cluster c, for each taint with
// the effect NoExecute that requires that, the earliest time first. fence is that of the object's
// namespace; nil: no restriction.
//
// The time is that at which the taint was added, plus the toleration. In a cluster that does not
// answer, the toleration begins no earlier than this process found that. The toleration of a taint
// of a failure also begins no earlier than the cluster answered again: the taint may be one that
// the hub has not removed yet. A taint without the time at which it was added requires nothing yet,
// and neither does one of a cluster that was not probed yet or that refuses the hub.
func (p *Placement) Dues(c *Cluster, fence Fence) []Due {
	if !c.Reachable && !c.Lost {
		return nil
	}
	var all []Due
	for i := range c.Taints {
		t := &c.Taints[i]
		if t.Effect != corev1.TaintEffectNoExecute || t.TimeAdded.IsZero() {
			continue
		}
		toleration, ends := p.toleration(c, t, fence)
		if !ends {
			continue
		}
		from := t.TimeAdded.Time
		if (c.Lost || ofFailure(t.Key)) && c.Since.After(from) {
			from = c.Since
		}
		all = append(all, Due{Taint: t, At: from.Add(toleration), Toleration: toleration})
	}
	slices.SortStableFunc(all, func(a, b Due) int { return a.At.Compare(b.At) })
	return all
}

// ending returns the taints of the cluster with the effect NoExecute that an object with this
// placement tolerates for some time, and when that ends. It does not depend on whether the cluster
// answers.
func (p *Placement) ending(c *Cluster, fence Fence) []Due {
	var all []Due
	for i := range c.Taints {
		t := &c.Taints[i]
		if t.Effect != corev1.TaintEffectNoExecute || t.TimeAdded.IsZero() {
			continue
		}
		if lasts, ends := p.toleration(c, t, fence); ends && lasts > 0 {
			all = append(all, Due{Taint: t, At: t.TimeAdded.Add(lasts), Toleration: lasts})
		}
	}
	return all
}

// toleration returns how long an object with this placement tolerates a taint with the effect
// NoExecute. ends is false if the object tolerates it forever. Of several matching tolerations the
// shortest counts, as in Kubernetes; one with less than 0 seconds counts as 0.
func (p *Placement) toleration(c *Cluster, t *corev1.Taint, fence Fence) (lasts time.Duration, ends bool) {
	matched := false
	if fence == nil || p.trusted || fence.Tolerates(c, t) {
		for _, toleration := range p.tolerations {
			if !Tolerates(toleration, t) {
				continue
			}
			matched = true
			if s := toleration.TolerationSeconds; s != nil {
				if d := seconds(*s); !ends || d < lasts {
					lasts, ends = d, true
				}
			}
		}
	}
	switch {
	case matched:
		return lasts, ends
	case ofFailure(t.Key):
		return DefaultToleration, true
	default:
		return 0, true
	}
}

// seconds returns a number of seconds as a duration: 0 for less than 0, and at most a hundred
// years.
func seconds(s int64) time.Duration {
	const most = 100 * 365 * 24 * 60 * 60
	return time.Duration(min(max(s, 0), most)) * time.Second
}

// ofFailure reports whether taints with this key say that a cluster failed: those that
// ClusterTaintPolicies conventionally set, in the spelling of Orrery or of Karmada.
func ofFailure(key string) bool {
	return slices.Contains([]string{
		clusterv1alpha1.TaintNotReady, clusterv1alpha1.TaintUnreachable,
		"cluster.karmada.io/not-ready", "cluster.karmada.io/unreachable",
	}, key)
}

// usedUp reports whether the object tolerates the taint of the cluster, but no longer at r.Now.
// With a zero r.Now it is false.
func (r *Request) usedUp(c *Cluster, t *corev1.Taint) bool {
	if r.Now.IsZero() || t.Effect != corev1.TaintEffectNoExecute || t.TimeAdded.IsZero() {
		return false
	}
	lasts, ends := r.Placement.toleration(c, t, r.Fence)
	return ends && !r.Now.Before(t.TimeAdded.Add(lasts))
}

// leaves reports whether the object has to leave the cluster now.
func (r *Request) leaves(c *Cluster) bool { return r.Leaves.Has(c.Name) }
