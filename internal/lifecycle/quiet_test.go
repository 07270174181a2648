package lifecycle

import (
	"context"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// quiet is an environment of files that tells nobody, for tests that reach no host.
type quiet struct {
	Files
	others
}

type others struct{ Environment }

func (quiet) Progress(lifecyclev1alpha1.Operation, lifecyclev1alpha1.StepRecord) {}

func (quiet) Built(context.Context, []byte) error { return nil }
