package provision

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
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
