package member

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// TestHangingLeaversHoldUpNobody: clusters whose departure hangs do not delay another cluster,
// neither its join nor its status.
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

// deletionPolicy changes while a cluster is cleaned up. WorkloadsLeft says what was done there, and
// not what the policy is in the end. After Orphan, the cleanup runs again with Delete.
func TestADepartureSaysWhatWasDone(t *testing.T) {
	for name, tc := range map[string]struct {
		deletes bool // the policy of the first run
		runs    int32
		reason  string
	}{
		"OrphanThenDelete": {false, 2, clusterv1alpha1.ReasonOrphaned},
		"DeleteThenOrphan": {true, 1, clusterv1alpha1.ReasonDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			begun, goOn, forget := make(chan struct{}), make(chan struct{}), make(chan struct{})
			f := startFleet(t, Options{Departures: append(inside(func(ctx context.Context, m *Member) error {
				if runs.Add(1) > 1 {
					if m.Cluster().Spec.DeletionPolicy != clusterv1alpha1.DeletionDelete {
						t.Errorf("the cleanup runs again with %s", m.Cluster().Spec.DeletionPolicy)
					}
					return nil
				}
				close(begun)
				select {
				case <-goOn:
				case <-ctx.Done():
				}
				return nil
			}), Departure{Name: "it is forgotten", Reason: clusterv1alpha1.ReasonForgetting, Outside: func(ctx context.Context, _ *clusterv1alpha1.Cluster) error {
				select {
				case <-forget:
				case <-ctx.Done():
				}
				return nil
			}})})
			f.joinReady(t, "one", testenv.Kubeconfig(1))
			m := f.member(t, "one")
			if err := Unjoin(t.Context(), f.hub, "one", tc.deletes); err != nil {
				t.Fatal(err)
			}
			<-begun
			before := m.Cluster().Generation
			if err := Unjoin(t.Context(), f.hub, "one", !tc.deletes); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the policy has changed", func() (bool, string) { return m.Cluster().Generation > before, "it has not" })
			close(goOn)
			var left *metav1.Condition
			eventually(t, "the cluster is cleaned up", func() (bool, string) {
				left = meta.FindStatusCondition(f.cluster(t, "one").Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
				return left != nil, "it is not"
			})
			if left.Reason != tc.reason || runs.Load() != tc.runs {
				t.Errorf("after %d runs the reason is %s, want %d and %s", runs.Load(), left.Reason, tc.runs, tc.reason)
			}
			close(forget)
			f.waitGone(t, "one")
		})
	}
}
