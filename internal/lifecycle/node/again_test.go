package node

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// restarts counts the restarts of units.
type restarts struct {
	unit.Manager

	of map[string]int
}

// Restart implements unit.Manager.
func (r restarts) Restart(ctx context.Context, name string) error {
	r.of[name]++
	return r.Manager.Restart(ctx, name)
}

// TestAgain: a unit that the host matches is restarted if the request asks for that, and no other.
func TestAgain(t *testing.T) {
	n := host(t, nil)
	count := restarts{Manager: n.Units, of: map[string]int{}}
	n.Units = count
	req := request(
		plan.Step{ID: "a/unit", Unit: &plan.Unit{Name: "orrery-a", Command: []string{"/bin/true"}}},
		plan.Step{ID: "b/unit", Unit: &plan.Unit{Name: "orrery-b", Command: []string{"/bin/true"}}},
	)
	done(t, n, req)
	done(t, n, req)
	if diff := cmp.Diff(map[string]int{"orrery-a": 1, "orrery-b": 1}, count.of); diff != "" {
		t.Errorf("restarts without a change (-want +got):\n%s", diff)
	}
	req.Again = []string{"b/unit"}
	want := map[string]lifecyclev1alpha1.StepState{"a/unit": lifecyclev1alpha1.StepUnchanged, "b/unit": lifecyclev1alpha1.StepChanged}
	if diff := cmp.Diff(want, done(t, n, req)); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"orrery-a": 1, "orrery-b": 2}, count.of); diff != "" {
		t.Errorf("restarts (-want +got):\n%s", diff)
	}
}
