package node

import (
	"context"
	"errors"
	"fmt"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// kind performs one kind of step.
type kind interface {
	// observe describes how the host differs from what was applied. drift is empty if it does not.
	observe(ctx context.Context, s *session, r *record) (drift string, err error)
	// capture adds to r.Before what apply will change, except for what r.Before has already.
	capture(ctx context.Context, s *session, r *record) error
	// apply makes the host match the step. It does not change what matches already.
	apply(ctx context.Context, s *session, r *record) error
	// revert restores r.Before. It may be called again, and ignores what is gone already.
	revert(ctx context.Context, s *session, r *record) error
}

// kindOf returns the kind that performs a step. It is an error if the agent knows no kind or
// several.
func kindOf(step plan.Step) (kind, error) {
	var found []kind
	if step.Directory != nil {
		found = append(found, directory{step.Directory})
	}
	if step.File != nil {
		found = append(found, file{step.File})
	}
	if step.Artifact != nil {
		found = append(found, artifact{step.Artifact})
	}
	if step.Sysctls != nil {
		found = append(found, sysctls{step.Sysctls})
	}
	if step.Modules != nil {
		found = append(found, modules{step.Modules})
	}
	if step.Packages != nil {
		found = append(found, packages{step.Packages})
	}
	if step.Script != nil {
		found = append(found, script{step.Script})
	}
	if step.Unit != nil {
		found = append(found, process{step.Unit})
	}
	if step.Sweep != nil {
		found = append(found, sweep{step.Sweep})
	}
	if step.Probe != nil {
		found = append(found, probe{step.Probe})
	}
	switch {
	case step.ID == "":
		return nil, errors.New("step has no ID")
	case len(found) != 1:
		return nil, fmt.Errorf("step %s is of %d kinds that this agent knows, want 1; the agent may be older than the plan", step.ID, len(found))
	}
	return found[0], nil
}

// known returns a step as it is stored: without content that is large or secret, and not needed to
// observe or undo the step.
func known(step plan.Step) plan.Step {
	if step.File != nil {
		f := *step.File
		f.Content = digestOf([]byte(f.Content))
		step.File = &f
	}
	if step.Script != nil {
		s := *step.Script
		s.Run = ""
		step.Script = &s
	}
	return step
}
