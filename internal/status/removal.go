package status

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// keptLength limits how much of the reason why a cluster keeps a copy is repeated in a
// condition.
const keptLength = 240

// removal returns the condition that says which clusters delay the deletion of a binding, why,
// and what the user can do; nil if no cluster is known to delay it.
func removal(generation int64, views []view) *metav1.Condition {
	var away, busy, reasons []string
	for i := range views {
		switch v := &views[i]; v.contact {
		case lost:
			away = append(away, v.cluster)
		case answers:
			reason, why := v.keeps(generation)
			busy = append(busy, v.cluster+why)
			reasons = append(reasons, reason)
		case unsure:
		}
	}
	slices.Sort(away)
	slices.Sort(busy)
	c := &metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionFalse}
	switch {
	case len(away) > 0:
		c.Reason = workv1alpha2.ReasonClusterUnreachable
		c.Message = "deleted; its copies go when these clusters answer again, or are given up when they are unjoined: " +
			listing(away, ", ")
		if len(busy) > 0 {
			c.Message += "; they are not gone yet either from " + listing(busy, ", ")
		}
	case len(busy) > 0:
		c.Reason = workv1alpha2.ReasonRemoving
		if i := slices.IndexFunc(precedence, func(reason string) bool { return slices.Contains(reasons, reason) }); i >= 0 {
			c.Reason = precedence[i]
		}
		c.Message = "deleted; its copies are not gone yet from " + listing(busy, ", ")
	default:
		return nil
	}
	return c
}

// keeps returns why a cluster that answers still has a copy of a deleted binding of a
// generation, and why as the end of a text. Both are empty if the copy will be gone soon.
func (v *view) keeps(generation int64) (reason, why string) {
	r := v.result
	if r == nil || r.Applied || r.Stale || r.Generation < generation || r.Message == "" {
		return "", ""
	}
	return r.Reason, " (" + cut(r.Message, keptLength) + ")"
}
