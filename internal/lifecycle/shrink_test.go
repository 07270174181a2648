package lifecycle

import (
	"fmt"
	"testing"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// TestRecordsFit: a file has at most as many records of steps as the schema of the API allows, in
// any state of the steps. The newest are kept.
func TestRecordsFit(t *testing.T) {
	for _, state := range []lifecyclev1alpha1.StepState{lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepFailed, lifecyclev1alpha1.StepRunning} {
		t.Run(string(state), func(t *testing.T) {
			files := Files(t.TempDir())
			op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionApply}}
			if err := files.Create(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			rec := newRecorder(&Engine{Env: quiet{Files: files}}, op)
			var last string
			for i := range maxSteps + 10 {
				last = fmt.Sprintf("step-%d", i)
				rec.step(lifecyclev1alpha1.StepRecord{Host: "h-1", ID: last, State: state})
			}
			// A step that has a record gets no second one.
			rec.step(lifecyclev1alpha1.StepRecord{Host: "h-1", ID: last, State: lifecyclev1alpha1.StepFailed})
			if err := rec.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			steps, err := files.Steps(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if end := steps[len(steps)-1]; len(steps) != maxSteps || end.ID != last || end.State != lifecyclev1alpha1.StepFailed {
				t.Errorf("%d records, the last of %s, which is %s; want %d, the last of %s, which has failed", len(steps), end.ID, end.State, maxSteps, last)
			}
		})
	}
}
