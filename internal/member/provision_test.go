package member

import (
	"context"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/reconciler"
	"orrery.dev/orrery/internal/testenv"
)

// TestProvisionedCluster: a Cluster that is to be built is not a member until it has an
// endpoint. When it leaves, it is cleaned up once, and its hosts are undone after that.
func TestProvisionedCluster(t *testing.T) {
	var cleaned, dismantled atomic.Int32
	var undone atomic.Bool
	f := startFleet(t, Options{
		Provision: func(_ context.Context, o *clusterv1alpha1.Cluster) error {
			if o.Spec.APIEndpoint == "" {
				return reconciler.Waiting(clusterv1alpha1.ReasonProvisioning, 0, "being built")
			}
			return reconciler.Done(clusterv1alpha1.ReasonProvisioned, "")
		},
		Departures: []Departure{
			{Inside: func(context.Context, *Member) error { cleaned.Add(1); return nil }},
			{Outside: func(_ context.Context, o *clusterv1alpha1.Cluster) error {
				if !emptied(o) || cleaned.Load() == 0 {
					t.Error("the hosts are undone before the cluster was cleaned up")
				}
				dismantled.Add(1)
				if !undone.Load() {
					return reconciler.Waiting(clusterv1alpha1.ReasonUndoingHosts, leaveRetry, "undoing the hosts")
				}
				return nil
			}},
			{Outside: func(context.Context, *clusterv1alpha1.Cluster) error {
				if !undone.Load() {
					t.Error("the last phase ran before the one in front of it was done")
				}
				return nil
			}},
		},
	})
	o := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "oak"},
		Spec: clusterv1alpha1.ClusterSpec{Provision: &clusterv1alpha1.Provision{
			Hosts:      []clusterv1alpha1.Host{{Name: "host-1", Address: "10.0.0.1"}},
			RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleControlPlane: {"host-1"}},
			Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
		}},
	}
	if err := f.hub.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	f.until(t, "oak", readyNow, metav1.ConditionFalse, clusterv1alpha1.ReasonProvisioning)
	if _, ok := f.registry.Member("oak"); ok {
		t.Error("a cluster that is not built is a member")
	}

	f.join(t, "oak", testenv.Kubeconfig(1))
	o = f.until(t, "oak", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if !meta.IsStatusConditionTrue(o.Status.Conditions, clusterv1alpha1.ConditionProvisioned) || o.Spec.SecretRef.Name != "oak" {
		t.Errorf("conditions %v and spec.secretRef %v: want it provisioned, with credentials", o.Status.Conditions, o.Spec.SecretRef)
	}

	if err := f.hub.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hosts are being undone", func() (bool, string) { return dismantled.Load() > 0, "" })
	if _, ok := f.registry.Member("oak"); ok {
		t.Error("a cluster whose hosts are being undone is a member")
	}
	f.until(t, "oak", readyNow, metav1.ConditionFalse, clusterv1alpha1.ReasonUndoingHosts)
	f.until(t, "oak", clusterv1alpha1.ConditionWorkloadsLeft, metav1.ConditionTrue, clusterv1alpha1.ReasonOrphaned)
	undone.Store(true)
	f.waitGone(t, "oak")
	if n := cleaned.Load(); n != 1 {
		t.Errorf("it was cleaned up %d times", n)
	}
}
