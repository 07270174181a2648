package provision

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

const (
	provisioned = clusterv1alpha1.ConditionProvisioned
	ready       = clusterv1alpha1.ConditionReady
)

// A Cluster with hosts is built, joins, and follows changes of its spec.
func TestBuildsJoinsAndFollows(t *testing.T) {
	h := startHub(t)
	h.create(t, cluster("oak", 1, 2))
	o := h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if o.Spec.APIEndpoint == "" || o.Spec.SecretRef.Name == "" || o.Status.ID == "" {
		t.Errorf("spec.apiEndpoint %q, spec.secretRef %v and status.id %q: want them filled in", o.Spec.APIEndpoint, o.Spec.SecretRef, o.Status.ID)
	}
	want := &clusterv1alpha1.ProvisionStatus{
		Operation: "oak-1", Version: "v1.36.3", NetworkPlugin: "flannel", NodesCount: 2, EtcdCount: 1, ControlPlaneCount: 1, WorkerCount: 2,
		Nodes: []clusterv1alpha1.ProvisionedNode{
			{Hostname: "host-1", InternalIP: "10.0.0.1", Roles: []clusterv1alpha1.Role{"etcd", "control-plane", "worker"}},
			{Hostname: "host-2", InternalIP: "10.0.0.2", Roles: []clusterv1alpha1.Role{"worker"}},
		},
	}
	if diff := cmp.Diff(want, o.Status.Provision, cmpopts.IgnoreFields(clusterv1alpha1.ProvisionStatus{}, "SpecHash")); diff != "" {
		t.Errorf("status.provision (-want +got):\n%s", diff)
	}
	hash := o.Status.Provision.SpecHash

	settled := func(operation string) {
		t.Helper()
		h.untilPhase(t, operation, lifecyclev1alpha1.PhaseSucceeded)
		eventually(t, "the status tells of "+operation, func() (bool, string) {
			o = h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			return o.Status.Provision.Operation == operation && o.Status.Provision.SpecHash != hash, cmp.Diff(want, o.Status.Provision)
		})
		hash = o.Status.Provision.SpecHash
	}
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1, 2, 3) })
	settled("oak-2")
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision.Kubernetes.MaxPods = 50 })
	settled("oak-3")
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) {
		s.Provision = provision(1, 3, 4)
		s.Provision.DeletionPolicy = clusterv1alpha1.DeletionDelete // changes no host
	})
	settled("oak-5")
	wantRuns := []string{
		"oak-1 Create [] attempt 1 on 2 hosts",
		"oak-2 AddNode [host-3] attempt 1 on 3 hosts",
		"oak-3 Apply [] attempt 1 on 3 hosts",
		"oak-4 DeleteNode [host-2] attempt 1 on 2 hosts",
		"oak-5 Apply [] attempt 1 on 3 hosts", // maxPods is removed too
	}
	if diff := cmp.Diff(wantRuns, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// The hub does not dial a Cluster that is not built. Its conditions say why.
func TestUnbuilt(t *testing.T) {
	h := startHub(t)
	h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, _ *clusterv1alpha1.Provision) error {
		return e.waitAsked(ctx, op)
	})
	h.create(t, cluster("oak", 1))
	h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonProvisioning)
	h.until(t, "oak", ready, metav1.ConditionFalse, clusterv1alpha1.ReasonProvisioning)
	o := h.until(t, "oak", clusterv1alpha1.ConditionReachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonProvisioning)
	if o.Status.Provision.Operation != "oak-1" {
		t.Errorf("status.provision.operation is %q, want oak-1", o.Status.Provision.Operation)
	}
}

// A failure is reported with what to do, and not repeated at once. Deleting the Operation starts a
// new attempt.
func TestFailure(t *testing.T) {
	h := startHub(t)
	h.onRun(func(context.Context, *fakeEngine, *lifecyclev1alpha1.Operation, *clusterv1alpha1.Provision) error {
		return errors.New("host host-1: no space left")
	})
	h.create(t, cluster("oak", 1))
	o := h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
	message := meta.FindStatusCondition(o.Status.Conditions, provisioned).Message
	for _, want := range []string{"oak-1", "no space left", "goes on where it was at"} {
		if !strings.Contains(message, want) {
			t.Errorf("the message %q does not have %q", message, want)
		}
	}
	h.onRun(nil)
	h.delete(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{}))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if n := len(h.ran()); n != 2 {
		t.Errorf("%d runs, want 2: %q", n, h.ran())
	}
}

// A changed spec is tried at once, even after a failure.
func TestChangedSpecAfterFailure(t *testing.T) {
	h := startHub(t)
	h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
		if len(spec.Hosts) == 1 {
			return errors.New("host host-1: too small")
		}
		return e.apply(ctx, op, spec)
	})
	h.create(t, cluster("oak", 1))
	h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1, 2) })
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
}

func TestInvalidSpec(t *testing.T) {
	h := startHub(t)
	o := cluster("oak", 1, 2)
	o.Spec.Provision.RoleGroups[clusterv1alpha1.RoleControlPlane] = clusterv1alpha1.HostNames{"host-1", "host-9"}
	h.create(t, o)
	o = h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonInvalid)
	if message := meta.FindStatusCondition(o.Status.Conditions, provisioned).Message; !strings.Contains(message, "host-9") {
		t.Errorf("the message %q does not name the host", message)
	}
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1, 2) })
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if diff := cmp.Diff([]string{"oak-1 Create [] attempt 1 on 2 hosts"}, h.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// A Cluster that only joins has no condition Provisioned.
func TestJoinedClusterHasNoProvisioned(t *testing.T) {
	h := startHub(t)
	h.create(t, cluster("oak", 1))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = nil })
	eventually(t, "the condition Provisioned is gone", func() (bool, string) {
		o := h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		return meta.FindStatusCondition(o.Status.Conditions, provisioned) == nil, ""
	})
}

func TestDismantle(t *testing.T) {
	refused := errors.New("host host-1 is unreachable")
	cases := map[string]struct {
		policy  clusterv1alpha1.DeletionPolicy
		want    []string // runs after the first
		secrets int
	}{
		"OrphanLeavesTheHosts": {policy: clusterv1alpha1.DeletionOrphan, secrets: 1},
		"DeleteUndoesThem":     {policy: clusterv1alpha1.DeletionDelete, want: []string{"oak-2 Delete [] attempt 1 on 1 hosts"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := startHub(t)
			o := cluster("oak", 1)
			o.Spec.Provision.DeletionPolicy = tc.policy
			h.create(t, o)
			o = h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			h.delete(t, o)
			h.untilGone(t, o)
			if diff := cmp.Diff(tc.want, h.ran()[1:], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("runs (-want +got):\n%s", diff)
			}
			if n := h.states(t); n != tc.secrets {
				t.Errorf("%d Secrets with state are left, want %d", n, tc.secrets)
			}
		})
	}
	t.Run("UnreachableHostsHoldIt", func(t *testing.T) {
		h := startHub(t)
		o := cluster("oak", 1)
		o.Spec.Provision.DeletionPolicy = clusterv1alpha1.DeletionDelete
		h.create(t, o)
		o = h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		h.onRun(func(context.Context, *fakeEngine, *lifecyclev1alpha1.Operation, *clusterv1alpha1.Provision) error {
			return refused
		})
		h.delete(t, o)
		o = h.until(t, "oak", ready, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
		message := meta.FindStatusCondition(o.Status.Conditions, ready).Message
		for _, want := range []string{refused.Error(), "deletionPolicy to Orphan", "Forget"} {
			if !strings.Contains(message, want) {
				t.Errorf("the message %q does not have %q", message, want)
			}
		}
		h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision.DeletionPolicy = clusterv1alpha1.DeletionOrphan })
		h.untilGone(t, o)
	})
	t.Run("ForgottenByHand", func(t *testing.T) {
		h := startHub(t)
		o := cluster("oak", 1)
		o.Spec.Provision.DeletionPolicy = clusterv1alpha1.DeletionDelete
		h.create(t, o)
		o = h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
			if !op.Spec.Forgets() {
				return refused
			}
			return e.apply(ctx, op, spec)
		})
		h.delete(t, o)
		h.until(t, "oak", ready, metav1.ConditionFalse, clusterv1alpha1.ReasonOperationFailed)
		h.create(t, operation("forget", lifecyclev1alpha1.OperationSpec{
			Cluster: "oak", Action: lifecyclev1alpha1.ActionDelete, Delete: &lifecyclev1alpha1.DeleteAction{Unreachable: lifecyclev1alpha1.UnreachableForget},
		}))
		h.untilGone(t, o)
	})
	t.Run("WhileItIsBuilt", func(t *testing.T) {
		h := startHub(t)
		h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, _ *clusterv1alpha1.Provision) error {
			return e.waitAsked(ctx, op)
		})
		o := cluster("oak", 1)
		h.create(t, o)
		h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseRunning)
		h.delete(t, o)
		h.untilGone(t, o)
		h.untilPhase(t, "oak-1", lifecyclev1alpha1.PhaseCanceled)
	})
}

// Using the name of an earlier cluster again does not remove that cluster.
func TestNameIsUsedAgain(t *testing.T) {
	h := startHub(t)
	first := cluster("oak", 1, 2)
	h.create(t, first)
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	h.delete(t, first)
	h.untilGone(t, first)
	h.create(t, cluster("oak", 1))
	o := h.until(t, "oak", provisioned, metav1.ConditionFalse, clusterv1alpha1.ReasonInvalid)
	if message := meta.FindStatusCondition(o.Status.Conditions, provisioned).Message; !strings.Contains(message, "host-2") {
		t.Errorf("the message %q does not name the host that would be lost", message)
	}
	h.change(t, "oak", func(s *clusterv1alpha1.ClusterSpec) { s.Provision = provision(1, 2) })
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if runs := h.ran(); len(runs) != 2 || !strings.Contains(runs[1], "Apply") {
		t.Errorf("runs %q, want the cluster taken up by an Apply", runs)
	}
}

// states counts the Secrets that hold the state of clusters.
func (h *hub) states(t *testing.T) int {
	t.Helper()
	return len(secrets(t, h))
}

func operation(name string, spec lifecyclev1alpha1.OperationSpec) *lifecyclev1alpha1.Operation {
	return &lifecyclev1alpha1.Operation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}
