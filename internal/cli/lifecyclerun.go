package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

// runFlags say how an Operation is run.
type runFlags struct {
	engineFlags

	yes            bool
	verbose        bool
	deadline       time.Duration
	drainTimeout   time.Duration
	attempts       int32
	maxUnavailable int32
}

func (f *runFlags) add(cmd *cobra.Command) {
	f.engineFlags.add(cmd)
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	addVerbose(cmd, &f.verbose)
	cmd.Flags().DurationVar(&f.deadline, "deadline", 0, "how long the run may take in all; then it fails and can be resumed (default: no limit)")
	cmd.Flags().DurationVar(&f.drainTimeout, "drain-timeout", 5*time.Minute, "how long a drain waits for pods whose disruption budget forbids eviction")
	cmd.Flags().Int32Var(&f.attempts, "attempts", 3, "how often a host's failed step is tried in all")
	cmd.Flags().Int32Var(&f.maxUnavailable, "max-unavailable", 1, "how many workers are changed at a time in a way that disturbs what runs on them")
}

func addVerbose(cmd *cobra.Command, verbose *bool) {
	cmd.Flags().BoolVarP(verbose, "verbose", "v", false, "print a line when a step begins and when it ends")
}

// check refuses values that make no sense.
func (f *runFlags) check() error {
	switch {
	case f.attempts < 1 || f.attempts > 100:
		return usageError{fmt.Errorf("--attempts %d: want 1 to 100", f.attempts)}
	case f.maxUnavailable < 1:
		return usageError{fmt.Errorf("--max-unavailable %d: want 1 or more", f.maxUnavailable)}
	case f.deadline < 0:
		return usageError{fmt.Errorf("--deadline %s: want 0 or more", f.deadline)}
	case f.drainTimeout <= 0:
		return usageError{fmt.Errorf("--drain-timeout %s: want more than 0", f.drainTimeout)}
	}
	return nil
}

// operation of a cluster, with what the flags say.
func (f *runFlags) operation(cluster string, action lifecyclev1alpha1.Action) *lifecyclev1alpha1.Operation {
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{
		Cluster: cluster, Action: action, Attempts: f.attempts, MaxUnavailable: f.maxUnavailable,
		DrainTimeout: &metav1.Duration{Duration: f.drainTimeout},
	}}
	if f.deadline > 0 {
		op.Spec.Deadline = &metav1.Duration{Duration: f.deadline}
	}
	return op
}

// start records a new Operation and runs it.
func start(ctx context.Context, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
	if err := e.Store.Create(ctx, op); err != nil {
		return err
	}
	return run(ctx, e, op, spec, "run the same command again")
}

// run runs an Operation, and says what to do if it fails.
func run(ctx context.Context, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, again string) error {
	err := e.Run(ctx, op, spec)
	if err == nil || errors.Is(err, lifecycle.ErrPaused) || errors.Is(err, lifecycle.ErrCanceled) {
		return err
	}
	return fmt.Errorf("operation %s: %w\nCorrect what is wrong and %s: what is done is not done twice. See %q for the steps",
		op.Name, err, again, "orrery operation show "+op.Name)
}
