package explanation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// What is removed says how, where it is not in the background: a deletion in the foreground takes as long as what the copies own.
func TestRemovalSaysThePropagation(t *testing.T) {
	for propagation, message := range map[metav1.DeletionPropagation]string{
		"":                                 "copies are there still",
		metav1.DeletePropagationForeground: "copies are there still: by propagation Foreground, each goes after what it owns",
		metav1.DeletePropagationOrphan:     "copies are there still: by propagation Orphan, each goes when its cluster has let go of what it owns, which stays",
	} {
		f := someFacts()
		f.binding.DeletionTimestamp, f.binding.Spec.DeletionPropagation = new(metav1.Now()), propagation
		want := []fleetv1alpha1.PlacementWait{{For: fleetv1alpha1.WaitRemoval, Message: message, Clusters: []string{"elm", "oak"}}}
		if diff := cmp.Diff(want, explain(f).Waits); diff != "" {
			t.Errorf("%q: waits (-want +got)\n%s", propagation, diff)
		}
	}
}
