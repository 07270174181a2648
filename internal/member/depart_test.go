package member

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// Clusters in which leaving hangs hold up no other: neither its status nor its coming.
func TestHangingLeaversHoldUpNobody(t *testing.T) {
	hang, arrived := make(chan struct{}), make(chan string, 2*leavers)
	f := startFleet(t, Options{Departures: []Departure{{
		Name: "it is gone", Reason: clusterv1alpha1.ReasonForgetting,
		Outside: func(ctx context.Context, o *clusterv1alpha1.Cluster) error {
			arrived <- o.Name
			select {
			case <-hang:
			case <-ctx.Done():
			}
			return nil
		},
	}}})
	for i := range leavers {
		name := fmt.Sprintf("leaver-%d", i)
		leaver := &clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{clusterv1alpha1.Finalizer}},
			Spec: clusterv1alpha1.ClusterSpec{
				SyncMode: clusterv1alpha1.Push, APIEndpoint: "https://127.0.0.1:1",
				SecretRef: clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: name},
			},
		}
		if err := f.hub.Create(t.Context(), leaver); err != nil {
			t.Fatal(err)
		}
		if err := Unjoin(t.Context(), f.hub, name, false); err != nil {
			t.Fatal(err)
		}
	}
	for range leavers {
		<-arrived
	}
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	close(hang)
	for i := range leavers {
		f.waitGone(t, fmt.Sprintf("leaver-%d", i))
	}
	f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
}
