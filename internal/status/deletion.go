package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// deletionWaits returns the condition DeletionWaits; nil if the template is not deleted, or its
// deletion waits for nothing.
func deletionWaits(of subject) *metav1.Condition {
	if of.deletion == "" {
		return nil
	}
	return &metav1.Condition{
		Type: workv1alpha2.ConditionDeletionWaits, Status: metav1.ConditionTrue, Reason: of.waitReason, Message: of.deletion,
	}
}
