package lifecycle

import (
	"context"
	"errors"
	"testing"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// TestWaits: what waits ends when its Operation is paused, and of what waits no more nothing is kept.
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
