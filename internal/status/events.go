package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

// maxNote is the number of bytes that an API server allows in the note of an Event.
const maxNote = 1024

// events records Events on the hub. The recorder of the manager implements it, and tests replace
// it.
type events interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// failures are the reasons of the condition FullyApplied about which users get an Event, because
// they have to do something.
var failures = []string{
	workv1alpha2.ReasonConflict, workv1alpha2.ReasonRejected, workv1alpha2.ReasonRenderFailed, workv1alpha2.ReasonPodSecurity,
	workv1alpha2.ReasonMutated, workv1alpha2.ReasonRunUnknown, workv1alpha2.ReasonAPINotServed, workv1alpha2.ReasonListFails,
}

// news returns the conditions in after about which users get an Event: they failed, began to wait
// or became contested since before, or did so for another reason. A condition that became good is
// not among them.
func news(before, after workv1alpha2.BindingStatus) []metav1.Condition {
	var failed []metav1.Condition
	for _, c := range after.Conditions {
		var notable bool
		switch c.Type {
		case workv1alpha2.ConditionScheduled:
			notable = c.Status == metav1.ConditionFalse
		case workv1alpha2.ConditionFullyApplied:
			notable = c.Status == metav1.ConditionFalse && slices.Contains(failures, c.Reason)
		case workv1alpha2.ConditionDeletionWaits, workv1alpha2.ConditionContested:
			notable = c.Status == metav1.ConditionTrue
		}
		if !notable {
			continue
		}
		if old := meta.FindStatusCondition(before.Conditions, c.Type); old == nil || old.Status != c.Status || old.Reason != c.Reason {
			failed = append(failed, c)
		}
	}
	return failed
}

// tell records the conditions that news returns for the written status as Events of the binding b
// and of its template, where users look first.
func (w *writer) tell(b *workv1alpha2.ResourceBinding, status workv1alpha2.BindingStatus) {
	for _, c := range news(b.Status, status) {
		action, kind := "Apply", corev1.EventTypeWarning
		switch c.Type {
		case workv1alpha2.ConditionScheduled:
			action = "Schedule"
		case workv1alpha2.ConditionDeletionWaits:
			if action = "Delete"; c.Reason == workv1alpha2.ReasonFinalizersRemain {
				kind = corev1.EventTypeNormal
			}
		case workv1alpha2.ConditionFullyApplied:
			if !b.DeletionTimestamp.IsZero() {
				action = "Delete"
			}
		}
		of := &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: b.Spec.Resource.APIVersion, Kind: b.Spec.Resource.Kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Spec.Resource.Name, UID: b.Spec.Resource.UID},
		}
		for _, regarding := range []runtime.Object{of, binding.Object(b)} {
			w.events.Eventf(regarding, nil, kind, c.Reason, action, "%s", cut(c.Message, maxNote))
		}
	}
}
