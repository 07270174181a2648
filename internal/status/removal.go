package status

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// keptLength is the number of bytes of the reason why a cluster keeps a copy that a condition
// repeats.
const keptLength = 240

// removal returns the condition FullyApplied of a binding in deletion: which clusters still have a
// copy, why, and what the user can do. It is nil if no cluster is known to have one. generation is
// that of the binding.
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
		c.Message = "deleted; its copies are deleted when these clusters answer again, or left there if they are unjoined: " +
			listing(away, ", ")
		if len(busy) > 0 {
			c.Message += "; copies also still exist in " + listing(busy, ", ")
		}
	case len(busy) > 0:
		c.Reason = workv1alpha2.ReasonRemoving
		if i := slices.IndexFunc(precedence, func(reason string) bool { return slices.Contains(reasons, reason) }); i >= 0 {
			c.Reason = precedence[i]
		}
		c.Message = "deleted; its copies still exist in " + listing(busy, ", ")
	default:
		return nil
	}
	return c
}

// keeps returns why a cluster that answers still has the copy of a binding in deletion: the reason
// for a condition, and a message in parentheses to append to a text. Both are "" if the copy will
// be gone soon. generation is that of the binding.
func (v *view) keeps(generation int64) (reason, why string) {
	r := v.result
	if r == nil || r.Applied || r.Stale || r.Generation < generation || r.Message == "" {
		return "", ""
	}
	return r.Reason, " (" + cut(r.Message, keptLength) + ")"
}
