package lifecycle

import (
	"fmt"
	"testing"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// TestRecordsFit: the API server takes no more records of steps than its schema says, whatever became of the steps.
func TestRecordsFit(t *testing.T) {
	for _, state := range []lifecyclev1alpha1.StepState{lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepFailed, lifecyclev1alpha1.StepRunning} {
		t.Run(string(state), func(t *testing.T) {
			rec := newRecorder(&Engine{}, &lifecyclev1alpha1.Operation{})
			var last string
			for i := range maxSteps + 10 {
				last = fmt.Sprintf("step-%d", i)
				rec.step(lifecyclev1alpha1.StepRecord{Host: "h-1", ID: last, State: state})
			}
			steps := rec.op.Status.Steps
			if len(steps) > maxSteps || steps[len(steps)-1].ID != last {
				t.Errorf("%d records, the last of %s; want at most %d, the last of %s", len(steps), steps[len(steps)-1].ID, maxSteps, last)
			}
			// A record that was kept is found again, and not made twice.
			rec.step(lifecyclev1alpha1.StepRecord{Host: "h-1", ID: last, State: lifecyclev1alpha1.StepFailed})
			if again := rec.op.Status.Steps; len(again) != len(steps) || again[len(again)-1].State != lifecyclev1alpha1.StepFailed {
				t.Errorf("%d records, the last is %s", len(again), again[len(again)-1].State)
			}
		})
	}
}
