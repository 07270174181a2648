package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

// runFlags define how an Operation is run.
type runFlags struct {
	engineFlags

	yes            bool
	verbose        bool
	deadline       time.Duration
	drainTimeout   time.Duration
	attempts       int32
	maxUnavailable int32
	pauseBetween   time.Duration
	haltAfter      int32
	plan           string
	dryRun         bool
	output         string
}

func (f *runFlags) add(cmd *cobra.Command) {
	f.engineFlags.add(cmd)
	f.haltAfter = 1
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	addVerbose(cmd, &f.verbose)
	cmd.Flags().DurationVar(&f.deadline, "deadline", 0, "how long the run may take in all; then it fails and can be resumed (default: no limit)")
	cmd.Flags().DurationVar(&f.drainTimeout, "drain-timeout", 5*time.Minute, "how long a drain waits for pods whose disruption budget forbids eviction")
	cmd.Flags().Int32Var(&f.attempts, "attempts", 3, "how often a host's failed step is tried in all")
	cmd.Flags().Int32Var(&f.maxUnavailable, "max-unavailable", 1, "how many workers are changed at a time in a way that disturbs what runs on them")
}

// addPlan adds the flags of commands that show a plan, and those for the order of its steps.
func (f *runFlags) addPlan(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.pauseBetween, "pause-between", 0, "how long to wait between two waves of hosts that are disturbed: each control plane, and as many workers as --max-unavailable, are one")
	cmd.Flags().Int32Var(&f.haltAfter, "halt-after", 1, "after how many hosts that failed nothing more is begun; until then they are left out and the others go on")
	cmd.Flags().StringVar(&f.plan, "plan", "", "hash of a plan that was shown: do that plan without asking, or nothing if the hosts, the cluster's file or what it names has changed since")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the plan and its hash, as --output says, and do nothing")
	addOutput(cmd, &f.output)
}

func addVerbose(cmd *cobra.Command, verbose *bool) {
	cmd.Flags().BoolVarP(verbose, "verbose", "v", false, "print a line when a step begins and when it ends")
}

// check returns an error for invalid values.
func (f *runFlags) check() error {
	switch {
	case f.output != "" && f.output != outputTable && !f.dryRun:
		return usageError{errors.New("--output says how a plan is printed: it needs --dry-run")}
	case f.attempts < 1 || f.attempts > 100:
		return usageError{fmt.Errorf("--attempts %d: want 1 to 100", f.attempts)}
	case f.maxUnavailable < 1:
		return usageError{fmt.Errorf("--max-unavailable %d: want 1 or more", f.maxUnavailable)}
	case f.haltAfter < 1:
		return usageError{fmt.Errorf("--halt-after %d: want 1 or more", f.haltAfter)}
	case f.pauseBetween < 0:
		return usageError{fmt.Errorf("--pause-between %s: want 0 or more", f.pauseBetween)}
	case f.deadline < 0:
		return usageError{fmt.Errorf("--deadline %s: want 0 or more", f.deadline)}
	case f.drainTimeout <= 0:
		return usageError{fmt.Errorf("--drain-timeout %s: want more than 0", f.drainTimeout)}
	}
	return nil
}

// operation returns an Operation for a cluster with the options from the flags, also in the
// member of its action.
func (f *runFlags) operation(cluster string, action lifecyclev1alpha1.Action) *lifecyclev1alpha1.Operation {
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: cluster, Action: action, Attempts: f.attempts}}
	order := lifecyclev1alpha1.Rollout{
		MaxUnavailable: f.maxUnavailable, HaltAfter: f.haltAfter, DrainTimeout: &metav1.Duration{Duration: f.drainTimeout},
	}
	if f.pauseBetween > 0 {
		order.PauseBetween = &metav1.Duration{Duration: f.pauseBetween}
	}
	op.Spec.SetMember(nil, "", order)
	if op.Spec.PlanHash = f.plan; f.plan != "" {
		f.yes = true // the user has seen the plan
	}
	if f.deadline > 0 {
		op.Spec.Deadline = &metav1.Duration{Duration: f.deadline}
	}
	return op
}

// show prints the changes of an Operation on standard output, and the command that applies them.
func (f *runFlags) show(ctx context.Context, s streams, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, again string) error {
	changes, err := e.PlanFor(ctx, op, spec)
	if err != nil {
		return err
	}
	return printValue(s.out, f.output, changes, func(w io.Writer) error {
		if f.verbose {
			changes.PrintDetail(w)
		} else {
			changes.Print(w)
		}
		if changes.Nothing() {
			return nil
		}
		return say(s.err, "do this and nothing else with: %s%s --plan %s\n", again, f.order(), changes.Hash)
	})
}

// order returns the flags for the order of hosts that were set: the hash of a plan does not
// include them.
func (f *runFlags) order() string {
	flags := ""
	if f.maxUnavailable != 1 {
		flags += fmt.Sprintf(" --max-unavailable %d", f.maxUnavailable)
	}
	if f.pauseBetween > 0 {
		flags += fmt.Sprintf(" --pause-between %s", f.pauseBetween)
	}
	if f.haltAfter != 1 {
		flags += fmt.Sprintf(" --halt-after %d", f.haltAfter)
	}
	return flags
}

// start records a new Operation and runs it. An Operation that Check refuses is not recorded.
func start(ctx context.Context, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
	if err := e.Check(ctx, op, spec); err != nil {
		return err
	}
	if err := e.Env.Create(ctx, op); err != nil {
		return err
	}
	return run(ctx, e, op, spec, "run the same command again")
}

// run runs an Operation. The error says what the user can do.
func run(ctx context.Context, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, again string) error {
	err := e.Run(ctx, op, spec)
	if err == nil || errors.Is(err, lifecycle.ErrPaused) || errors.Is(err, lifecycle.ErrCanceled) {
		return err
	}
	// the run may have changed something
	if op.Spec.Action == lifecyclev1alpha1.ActionApply && op.Status.PlanHash != "" {
		again += fmt.Sprintf(", or go back with %q", "orrery cluster rollback "+op.Spec.Cluster)
	}
	return fmt.Errorf("operation %s: %w\nCorrect what is wrong and %s: what is done is not done twice. See %q for the steps",
		op.Name, err, again, "orrery operation show "+op.Name)
}
