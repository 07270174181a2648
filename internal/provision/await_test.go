package provision

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
)

// TestDeletedClusterIsNotReady: a Cluster that is being deleted is not ready while an Operation of
// it ends, also if the Operation renews certificates.
func TestDeletedClusterIsNotReady(t *testing.T) {
	for _, action := range []lifecyclev1alpha1.Action{lifecyclev1alpha1.ActionRenewCertificates, lifecyclev1alpha1.ActionApply} {
		for name, paused := range map[string]bool{"Running": false, "Paused": true} {
			t.Run(string(action)+name, func(t *testing.T) {
				op := &lifecyclev1alpha1.Operation{
					ObjectMeta: metav1.ObjectMeta{Name: "oak-2"},
					Spec:       lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: action, Canceled: true, Paused: paused},
				}
				err := (&Provisioner{}).await(t.Context(), op, true)
				if reconciler.Succeeded(err) || err == nil || !strings.Contains(err.Error(), "is ending") {
					t.Errorf("the result is %v, want that the Cluster waits for the end of the Operation", err)
				}
			})
		}
	}
}
