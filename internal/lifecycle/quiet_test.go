package lifecycle

import (
	"context"

	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// quiet is an Environment of files that ignores progress, for tests that reach no host.
type quiet struct {
	Files
	others
}

type others struct{ Environment }

func (quiet) Progress(lifecyclev1alpha1.Operation, lifecyclev1alpha1.StepRecord) {}

func (quiet) Built(context.Context, []byte, clusterv1alpha1.SyncMode, func(context.Context) (*rest.Config, error)) error {
	return nil
}
