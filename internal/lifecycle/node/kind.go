package node

import (
	"context"
	"errors"
	"fmt"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// kind performs one kind of step, such as a file or a unit. kindOf returns the kind of a step. Its
// methods get the record of the step, which they may change; the caller saves the record.
type kind interface {
	// observe describes how the host differs from the applied step. drift is "" if it does not.
	observe(ctx context.Context, s *session, r *record) (drift string, err error)
	// capture records in r.Before what apply will change on the host. It skips what r.Before has
	// already, so that r.Before keeps the state before the first apply.
	capture(ctx context.Context, s *session, r *record) error
	// apply makes the host match the step. It does not change parts that match already, except
	// that a unit is always restarted and a script always runs.
	apply(ctx context.Context, s *session, r *record) error
	// revert restores the state in r.Before. A second call continues after an interruption, and
	// ignores what is gone already.
	revert(ctx context.Context, s *session, r *record) error
}

// kindOf returns the kind that performs a step. It returns an error for a step without an ID, and
// for a step that does not have exactly one kind that the agent knows.
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

// known returns a copy of a step as the record stores it, without content that is large or secret.
// The content of a file is replaced by its digest, and the text of a script is removed. The copy is
// enough to observe and undo the step.
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
