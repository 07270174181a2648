package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// operationOf is an Operation as a user would write it.
func operationOf(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": lifecyclev1alpha1.GroupVersion.String(), "kind": "Operation",
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// TestMemberOfItsAction: fields of one action are accepted with that action only.
func TestMemberOfItsAction(t *testing.T) {
	h := newHub(t)
	hosts := []any{"host-1"}
	members := map[string]map[string]any{
		"create": {"maxUnavailable": int64(2)}, "apply": {"haltAfter": int64(2)}, "addNode": {"hosts": hosts}, "deleteNode": {"hosts": hosts},
		"delete": {"unreachable": "Forget"}, "renewCertificates": {"maxUnavailable": int64(2)},
	}
	for _, action := range []string{"Create", "Apply", "AddNode", "DeleteNode", "Delete", "RenewCertificates"} {
		own := strings.ToLower(action[:1]) + action[1:]
		for member, content := range members {
			err := h.Create(t.Context(), operationOf("oak-1", map[string]any{"cluster": "oak", "action": action, member: content}), client.DryRunAll)
			switch says := member + " is for action "; {
			case member == own && err != nil:
				t.Errorf("%s with %s: %v", action, member, err)
			case member != own && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), says)):
				t.Errorf("%s with %s: %v, want that %q", action, member, err, says)
			}
		}
		err := h.Create(t.Context(), operationOf("oak-1", map[string]any{"cluster": "oak", "action": action}), client.DryRunAll)
		if bare := action != "DeleteNode"; bare != (err == nil) {
			t.Errorf("%s without a member: %v", action, err)
		}
	}
	for field, value := range map[string]any{
		"hosts": hosts, "unreachable": "Forget", "maxUnavailable": int64(2), "pauseBetween": "1s", "haltAfter": int64(2), "drainTimeout": "1m",
	} {
		err := h.Create(t.Context(), operationOf("oak-1", map[string]any{"cluster": "oak", "action": "DeleteNode", field: value}), client.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "belong in the member of the action, such as deleteNode.hosts") {
			t.Errorf("a new Operation in the form of an earlier version, with %s: %v", field, err)
		}
	}
}

// TestOnlyPausedAndCanceledChange: of an existing Operation only paused and canceled can change.
func TestOnlyPausedAndCanceledChange(t *testing.T) {
	h := newHub(t)
	second := &metav1.Duration{Duration: time.Second}
	h.create(t, operation("oak-1", lifecyclev1alpha1.OperationSpec{
		Cluster: "oak", Action: lifecyclev1alpha1.ActionDeleteNode, Attempts: 2,
		DeleteNode: &lifecyclev1alpha1.DeleteNodeAction{Hosts: []string{"host-1"}, Rollout: lifecyclev1alpha1.Rollout{PauseBetween: second}},
	}))
	for name, tc := range map[string]struct {
		change func(*lifecyclev1alpha1.OperationSpec)
		taken  bool
	}{
		"Paused":     {func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = !s.Paused }, true},
		"Canceled":   {func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = !s.Canceled }, true},
		"Cluster":    {change: func(s *lifecyclev1alpha1.OperationSpec) { s.Cluster = "elm" }},
		"Action":     {change: func(s *lifecyclev1alpha1.OperationSpec) { s.Action, s.DeleteNode = lifecyclev1alpha1.ActionDelete, nil }},
		"PlanHash":   {change: func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = "0123" }},
		"Deadline":   {change: func(s *lifecyclev1alpha1.OperationSpec) { s.Deadline = second }},
		"Attempts":   {change: func(s *lifecyclev1alpha1.OperationSpec) { s.Attempts = 5 }},
		"NoAttempts": {change: func(s *lifecyclev1alpha1.OperationSpec) { s.Attempts = 0 }},
		"Hosts":      {change: func(s *lifecyclev1alpha1.OperationSpec) { s.DeleteNode.Hosts = []string{"host-2"} }},
		"Unreachable": {change: func(s *lifecyclev1alpha1.OperationSpec) {
			s.DeleteNode.Unreachable = lifecyclev1alpha1.UnreachableForget
		}},
		"MaxUnavailable": {change: func(s *lifecyclev1alpha1.OperationSpec) { s.DeleteNode.MaxUnavailable = 4 }},
		"PauseBetween":   {change: func(s *lifecyclev1alpha1.OperationSpec) { s.DeleteNode.PauseBetween = nil }},
		"NoMember":       {change: func(s *lifecyclev1alpha1.OperationSpec) { s.DeleteNode = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			op := &lifecyclev1alpha1.Operation{}
			if err := h.Get(t.Context(), client.ObjectKey{Name: "oak-1"}, op); err != nil {
				t.Fatal(err)
			}
			tc.change(&op.Spec)
			if err := h.Update(t.Context(), op, client.DryRunAll); tc.taken != (err == nil) || !tc.taken && !apierrors.IsInvalid(err) {
				t.Errorf("taken: %v, want %t", err, tc.taken)
			}
		})
	}
}

// asBefore makes the API server accept Operations in the form of an earlier version. Calling now
// restores the schema of this version, as an upgrade does.
func (h *hub) asBefore(t *testing.T) (now func()) {
	t.Helper()
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := h.Get(t.Context(), client.ObjectKey{Name: "operations.lifecycle.orrery.dev"}, definition); err != nil {
		t.Fatal(err)
	}
	before := definition.DeepCopy()
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	version, ok := versions[0].(map[string]any)
	if !ok {
		t.Fatal("the definition has no version")
	}
	unstructured.RemoveNestedField(version, "schema", "openAPIV3Schema", "properties", "spec", "x-kubernetes-validations")
	if err := unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	if err := h.Patch(t.Context(), definition, client.MergeFrom(before)); err != nil { // the server owns status
		t.Fatal(err)
	}
	takes := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("flat Operations are taken: %t", want), func() (bool, string) {
			err := h.Create(t.Context(), operationOf("probe", map[string]any{"cluster": "oak", "action": "Apply", "haltAfter": int64(1)}), client.DryRunAll)
			return want == (err == nil), fmt.Sprint(err)
		})
	}
	takes(true)
	return func() {
		t.Helper()
		if err := testenv.InstallCRDs(testenv.Config(0)); err != nil {
			t.Fatal(err)
		}
		takes(false)
	}
}

// TestOperationOfBefore: an unfinished Operation of an earlier version is run with its meaning. It
// can be paused and canceled, but not changed otherwise.
func TestOperationOfBefore(t *testing.T) {
	h := startHub(t)
	h.create(t, cluster("oak", 1, 2))
	h.until(t, "oak", ready, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	var mu sync.Mutex
	var got *lifecyclev1alpha1.OperationSpec
	h.onRun(func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Name == "before" {
			got = op.Spec.DeepCopy()
		}
		return e.apply(ctx, op, spec)
	})
	now := h.asBefore(t)
	h.create(t, operationOf("before", map[string]any{
		"cluster": "oak", "action": "DeleteNode", "hosts": []any{"host-2"}, "unreachable": "Forget", "paused": true,
		"maxUnavailable": int64(3), "pauseBetween": "2s", "haltAfter": int64(2), "drainTimeout": "1m0s",
	}))
	now()
	h.untilPhase(t, "before", lifecyclev1alpha1.PhasePaused)
	changed := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"hosts":["host-1"]}}`))
	if err := h.Patch(t.Context(), operation("before", lifecyclev1alpha1.OperationSpec{}), changed); !apierrors.IsInvalid(err) {
		t.Errorf("its hosts are changed: %v", err)
	}
	h.control(t, "before", func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = false })
	h.untilPhase(t, "before", lifecyclev1alpha1.PhaseSucceeded)
	if !slices.Contains(h.ran(), "before DeleteNode [host-2] attempt 1 on 1 hosts") {
		t.Errorf("ran %q", h.ran())
	}
	minute, two := &metav1.Duration{Duration: time.Minute}, &metav1.Duration{Duration: 2 * time.Second}
	want := &lifecyclev1alpha1.OperationSpec{
		Cluster: "oak", Action: lifecyclev1alpha1.ActionDeleteNode,
		DeleteNode: &lifecyclev1alpha1.DeleteNodeAction{
			Hosts: []string{"host-2"}, Unreachable: lifecyclev1alpha1.UnreachableForget,
			Rollout: lifecyclev1alpha1.Rollout{MaxUnavailable: 3, PauseBetween: two, HaltAfter: 2, DrainTimeout: minute},
		},
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the engine is given (-want +got):\n%s", diff)
	}
}
