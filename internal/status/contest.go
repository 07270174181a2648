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

// waysOut has, for each reason of the condition Contested, the end of its message: what the user
// can do.
var waysOut = map[string]string{
	workv1alpha2.ReasonFieldsChanged: "leave the field out of the template, remove it for this cluster by an override policy, or stop the other manager from changing it",
	workv1alpha2.ReasonCopyDeleted:   "the audit log of the cluster names who deletes it; stop that, or take the cluster out of the policy",
	workv1alpha2.ReasonOtherHub:      "take the object out of the policy of one of the hubs",
}

// contested returns the condition Contested: another client undoes what the hub writes to a copy.
// It is nil if this process has seen no such copy in a cluster that the binding names. Its reason
// is the most urgent one of all clusters.
func contested(states []clusterState) *metav1.Condition {
	rank := []string{workv1alpha2.ReasonOtherHub, workv1alpha2.ReasonCopyDeleted, workv1alpha2.ReasonFieldsChanged}
	var found []clusterState
	for _, s := range states {
		if s.placed && s.contest.Reason != "" {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortStableFunc(found, func(a, b clusterState) int {
		return cmp.Compare(slices.Index(rank, a.contest.Reason), slices.Index(rank, b.contest.Reason))
	})
	var said []string
	for _, s := range found {
		said = append(said, s.cluster+": "+s.contest.Message)
	}
	reason := found[0].contest.Reason
	return &metav1.Condition{
		Type: workv1alpha2.ConditionContested, Status: metav1.ConditionTrue, Reason: reason,
		Message: listing(said, "; ") + "; " + apply.PutBackPace() + "; " + waysOut[reason],
	}
}

// deletedAgain changes the view of a copy that a client in its cluster deletes each time the hub
// creates it: the copy counts as absent and not applied, so that the status does not change with
// each deletion. For other views it does nothing. It replaces v.result and does not modify it.
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

// watched returns how much longer this process must run until it can remove the stored condition
// Contested of the binding b. Only then is it known that no client undoes writes of copies any
// more. It is 0 if the process has run that long, or there is no such condition.
func (w *writer) watched(b *workv1alpha2.ResourceBinding) time.Duration {
	if meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionContested) == nil {
		return 0
	}
	return max(0, time.Until(w.started.Add(apply.PutBackMemory)))
}
