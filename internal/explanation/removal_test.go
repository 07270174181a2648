package explanation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// An explanation of a removal names the propagation unless it is Background: a foreground
// deletion takes as long as the deletion of the objects that the copies own.
func TestRemovalSaysThePropagation(t *testing.T) {
	for propagation, message := range map[metav1.DeletionPropagation]string{
		"":                                 "copies still exist",
		metav1.DeletePropagationForeground: "copies still exist: with propagation Foreground, each is deleted after the objects that it owns",
		metav1.DeletePropagationOrphan:     "copies still exist: with propagation Orphan, each is deleted after its cluster has released the objects that it owns, and these stay",
	} {
		f := someFacts()
		f.binding.DeletionTimestamp, f.binding.Spec.DeletionPropagation = new(metav1.Now()), propagation
		want := []fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitRemoval, Message: message, Clusters: []string{"elm", "oak"}}}
		if diff := cmp.Diff(want, explain(f).Waits); diff != "" {
			t.Errorf("%q: waits (-want +got)\n%s", propagation, diff)
		}
	}
}
