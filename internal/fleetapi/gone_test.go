package fleetapi

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// gone: after an object is deleted on the hub, users who may get the object see what its copies
// wait for. Nothing is left to see once the copies are gone.
func (w *world) gone(t *testing.T, inMember client.Client, shop string) {
	const name = "leaving"
	copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name}}
	w.create(t, copied.DeepCopy(), &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: name}},
			Placement:         policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"oak"}}},
		},
	})
	of := placementOf("ConfigMap/" + shop + "/" + name)
	hold := func(finalizers ...string) {
		t.Helper()
		testenv.Eventually(t, "the copy is held", testenv.Patience, func() error {
			if err := inMember.Get(t.Context(), client.ObjectKeyFromObject(copied), copied); err != nil {
				return err
			}
			copied.Finalizers = finalizers
			return inMember.Update(t.Context(), copied)
		})
	}
	hold("example.com/hold")
	remove(t.Context(), t, w.client, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name}})
	testenv.Eventually(t, "the copy is waited for", testenv.Patience, func() error {
		p, text := read[fleetv1alpha1.PlacementExplanation](t, w, "alice", of)
		if p.State != fleetv1alpha1.PlacementWaiting || p.Message != "it was deleted on the hub, and its copies are being deleted" || p.Policy != nil ||
			!slices.ContainsFunc(p.Waits, func(p fleetv1alpha1.PlacementWait) bool {
				return p.For == fleetv1alpha1.WaitRemoval && slices.Equal(p.Clusters, []string{"oak"})
			}) {
			return fmt.Errorf("it is said %s", text)
		}
		return nil
	})
	if code, text := w.ask(t, "carol", http.MethodGet, of, ""); code != http.StatusForbidden {
		t.Errorf("to who may not get it: %d %s", code, text)
	}
	review := fmt.Sprintf(`{"apiVersion":"fleet.orrery.dev/v1alpha1","kind":"PlacementReview","spec":{"namespace":%q,"of":"ConfigMap/%s/%s"}}`, shop, shop, name)
	if code, text := w.ask(t, "alice", http.MethodPost, fleetv1alpha1.PlacementReviewsPath, review); code != http.StatusNotFound {
		t.Errorf("a review: %d %s", code, text)
	}
	hold()
	testenv.Eventually(t, "nothing is known of it any more", testenv.Patience, func() error {
		if code, text := w.ask(t, "alice", http.MethodGet, of, ""); code != http.StatusNotFound {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
}
