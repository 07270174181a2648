package status

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/testenv"
)

// TestManagedFieldsAreSmall: no write is made only to drop the managedFields of a binding. They
// must therefore be small, and not grow with the clusters and their reports. A patch that
// changes the placement drops them.
func TestManagedFieldsAreSmall(t *testing.T) {
	f := newFleet(t)
	ns := testenv.Namespace(t, testenv.Config(0))
	const most = 620 // bytes
	for _, clusters := range []int{2, 200} {
		b := &workv1alpha2.ResourceBinding{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: ns, Name: fmt.Sprintf("web-%d", clusters), Finalizers: []string{workv1alpha2.Finalizer},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"}},
			},
			Spec: workv1alpha2.BindingSpec{
				Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", Generation: 1},
				PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"}, Replicas: new(int32(2)),
			},
		}
		var status workv1alpha2.BindingStatus
		for i := range clusters {
			name := fmt.Sprintf("cluster-%d", i)
			b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: name, Replicas: new(int32(2))})
			status.AggregatedStatus = append(status.AggregatedStatus, workv1alpha2.AggregatedStatusItem{
				ClusterName: name, Applied: true, Health: workv1alpha2.ResourceHealthy,
				Status: &runtime.RawExtension{Raw: []byte(`{"replicas":2,"readyReplicas":2,"observedGeneration":1}`)},
			})
		}
		for _, kind := range []string{workv1alpha2.ConditionScheduled, workv1alpha2.ConditionFullyApplied, workv1alpha2.ConditionHealthy} {
			status.Conditions = append(status.Conditions, metav1.Condition{
				Type: kind, Status: metav1.ConditionTrue, Reason: "Good", LastTransitionTime: metav1.NewTime(time.Unix(1000, 0)),
			})
		}
		f.must(f.hub.Create(t.Context(), b, client.FieldOwner("orrery")))
		b.Status = status
		f.must(f.hub.Status().Update(t.Context(), b, client.FieldOwner("orrery")))
		text, err := json.Marshal(b.ManagedFields)
		f.must(err)
		if len(b.ManagedFields) == 0 || len(text) > most {
			t.Errorf("on %d clusters the managedFields have %d bytes, want at most %d, and some: %s", clusters, len(text), most, text)
		}

		updated := b.DeepCopy()
		updated.Spec.Clusters = updated.Spec.Clusters[:1]
		before := binding.DropManagedFields(b, updated)
		f.must(f.hub.Patch(t.Context(), updated, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
		updated.Status.AggregatedStatus = updated.Status.AggregatedStatus[:1]
		f.must(f.hub.Status().Update(t.Context(), updated))
		f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
		if len(b.ManagedFields) > 0 || len(b.Spec.Clusters) != 1 || len(b.Status.AggregatedStatus) != 1 {
			t.Errorf("after a patch of the placement and a write of the status the binding has managedFields %v, %d clusters and %d statuses",
				b.ManagedFields, len(b.Spec.Clusters), len(b.Status.AggregatedStatus))
		}
		b.Finalizers = nil
		f.must(f.hub.Update(t.Context(), b))
		f.must(f.hub.Delete(t.Context(), b))
	}
}
