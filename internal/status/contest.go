package status

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
)

// waysOut has the end of the message of the condition Contested for each reason: what the user
// can do.
var waysOut = map[string]string{
	workv1alpha2.ReasonFieldsChanged: "leave the field out of the template, or remove it for this cluster by an override policy; or have the other manager leave it alone",
	workv1alpha2.ReasonCopyDeleted:   "the audit log of the cluster names who deletes it; stop that, or take the cluster out of the policy",
	workv1alpha2.ReasonOtherHub:      "take the object out of the policy of one of the hubs",
}

// contestedPace is the part of the message of the condition Contested that describes the
// pauses.
const contestedPace = "; the hub waits longer each time, up to 5 minutes; "

// contested returns the condition Contested; nil if this process has seen no contested copy.
// Its reason is the most urgent one of all clusters.
func contested(standings []standing) *metav1.Condition {
	rank := []string{workv1alpha2.ReasonOtherHub, workv1alpha2.ReasonCopyDeleted, workv1alpha2.ReasonFieldsChanged}
	var found []standing
	for _, s := range standings {
		if s.placed && s.contest.Reason != "" {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortStableFunc(found, func(a, b standing) int {
		return cmp.Compare(slices.Index(rank, a.contest.Reason), slices.Index(rank, b.contest.Reason))
	})
	var said []string
	for _, s := range found {
		said = append(said, s.cluster+": "+s.contest.Message)
	}
	reason := found[0].contest.Reason
	return &metav1.Condition{
		Type: workv1alpha2.ConditionContested, Status: metav1.ConditionTrue, Reason: reason,
		Message: listing(said, "; ") + contestedPace + waysOut[reason],
	}
}

// deletedAgain treats a copy as absent that something in its cluster deletes each time the hub
// creates it. So the status does not change each time.
func (v *view) deletedAgain() {
	if v.contest.Reason != workv1alpha2.ReasonCopyDeleted {
		return
	}
	v.object = nil
	if v.result != nil {
		r := *v.result
		r.Applied, r.Reason, r.Message = false, workv1alpha2.ReasonApplying, v.contest.Message
		v.result = &r
	}
}

// watched returns the time until this process has watched long enough to know that no copy is
// contested any more that an earlier process reported; 0 if it has, or there is no such report.
func (w *writer) watched(b *workv1alpha2.ResourceBinding) time.Duration {
	if meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionContested) == nil {
		return 0
	}
	return max(0, time.Until(w.started.Add(apply.PutBackMemory)))
}
