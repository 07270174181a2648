package lifecycle_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// patchNode changes a node as an administrator would.
func (l *lab) patchNode(name, patch string) {
	l.t.Helper()
	if _, err := l.cs.CoreV1().Nodes().Patch(l.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// cordoned lists the unschedulable nodes.
func (l *lab) cordoned() []string {
	l.t.Helper()
	nodes, err := l.cs.CoreV1().Nodes().List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	var names []string
	for _, n := range nodes.Items {
		if n.Spec.Unschedulable {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestLeftCordoned: a node that a run left cordoned is in the plan and its hash. The next run
// uncordons it, even without work on its host. An administrator's cordon stays.
func TestLeftCordoned(t *testing.T) {
	l := built(t, 4, 1)
	_, before, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil || !before.Nothing() {
		t.Fatalf("%+v %v", before, err)
	}
	l.patchNode("h-2", `{"metadata":{"annotations":{"lifecycle.orrery.dev/cordoned-by":"oak-1"}},"spec":{"unschedulable":true}}`)
	l.patchNode("h-3", `{"spec":{"unschedulable":true}}`)
	l.patchNode("h-4", `{"metadata":{"annotations":{"lifecycle.orrery.dev/cordoned-by":"oak-1"}},"spec":{"unschedulable":true}}`)
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, s := range changes.Steps {
		steps = append(steps, s.ID)
	}
	if !slices.Equal(steps, []string{"uncordon/h-2", "uncordon/h-4"}) || changes.Hash == before.Hash {
		t.Errorf("the plan: %v, of hash %s after %s", steps, changes.Hash, before.Hash)
	}
	var printed strings.Builder
	changes.Print(&printed)
	if !strings.Contains(printed.String(), "* Uncordon h-2, h-4\n") || strings.Contains(printed.String(), "Nothing to do") {
		t.Errorf("it is shown as: %s", printed.String())
	}
	if _, err := l.run(lifecyclev1alpha1.ActionApply, l.spec, func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = before.Hash }); err == nil {
		t.Error("the plan of before is done")
	}
	if got := l.cordoned(); len(got) != 3 {
		t.Errorf("cordoned are %v", got)
	}
	l.unreachable("h-4")
	if _, err := l.run(lifecyclev1alpha1.ActionApply, l.spec); err == nil {
		t.Error("a host is away")
	}
	l.unreachable()
	if got := l.cordoned(); !slices.Equal(got, []string{"h-3", "h-4"}) {
		t.Errorf("while host h-4 is away, cordoned are %v", got)
	}
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	if got := l.cordoned(); !slices.Equal(got, []string{"h-3"}) {
		t.Errorf("cordoned are %v, want that of the administrator", got)
	}
	if _, changes, err = l.engine.Plan(t.Context(), l.spec); err != nil || !changes.Nothing() {
		t.Errorf("there is more to do: %+v %v", changes, err)
	}
}
