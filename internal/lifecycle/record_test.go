package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestPlannedChanges: if a plan is too long for an Operation, the omitted changes are counted, and
// each host is named.
func TestPlannedChanges(t *testing.T) {
	c := &plan.Changes{}
	const hosts, each, many = 50, 40, maxPlanned + 10
	for i := range many { // short, but more than a group may have
		c.Items = append(c.Items, plan.Change{Host: "a", Kind: "File", Step: "s", Target: fmt.Sprintf("/%d", i), Op: plan.OpAdd})
	}
	for h := range hosts {
		for i := range each {
			target := fmt.Sprintf("/etc/%d-%d/%s", h, i, strings.Repeat("x", 80))
			c.Items = append(c.Items, plan.Change{Host: fmt.Sprintf("h-%d", h), Kind: "File", Step: "s", Target: target, Op: plan.OpAdd})
		}
	}
	size, counted, named := 0, 0, 0
	for _, p := range plannedChanges(c) {
		named += len(p.Hosts)
		counted += len(p.Changes) + int(p.Left)
		size += len(strings.Join(p.Changes, ""))
		if len(p.Changes) > maxPlanned {
			t.Errorf("%d lines of %v, more than the schema lets in", len(p.Changes), p.Hosts)
		}
	}
	if named != hosts+1 || counted != hosts*each+many || size > maxPlan || size < maxPlan/2 {
		t.Errorf("%d hosts with %d changes are recorded in %d bytes, want %d with %d in at most %d", named, counted, size, hosts+1, hosts*each+many, maxPlan)
	}
}

// TestWaits: waits end when their Operation is paused, and finished waits are forgotten.
func TestWaits(t *testing.T) {
	files := Files(t.TempDir())
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionApply}}
	if err := files.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	rec := newRecorder(&Engine{Env: quiet{Files: files}}, op)
	waiting, end := rec.wait(t.Context())
	for range 100 {
		_, over := rec.wait(t.Context())
		over(nil)
	}
	if len(rec.waits) != 1 {
		t.Errorf("%d waits are kept, and 1 is under way", len(rec.waits))
	}
	if err := files.Control(t.Context(), op.Name, func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = true }); err != nil {
		t.Fatal(err)
	}
	if err := rec.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := context.Cause(waiting); !errors.Is(err, ErrPaused) {
		t.Errorf("what waits goes on though the Operation is paused: %v", err)
	}
	if end(nil); len(rec.waits) != 0 {
		t.Errorf("%d waits are kept when none is under way", len(rec.waits))
	}
}
