package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/neutral"
)

// runFlags are the flags of commands that run an Operation on the hosts of a cluster. They say
// whether the user is asked, how the run proceeds, and how its plan is shown.
type runFlags struct {
	engineFlags

	cmd            *cobra.Command // the command that has the flags
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
	f.cmd = cmd
	f.haltAfter = 1
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	addVerbose(cmd, &f.verbose)
	cmd.Flags().DurationVar(&f.deadline, "deadline", 0, "how long the run may take in all; then it fails and can be resumed (default: no limit)")
	cmd.Flags().DurationVar(&f.drainTimeout, "drain-timeout", 5*time.Minute, "how long a drain waits for pods whose disruption budget forbids eviction")
	cmd.Flags().Int32Var(&f.attempts, "attempts", 3, "how often a host's failed step is tried in all")
	cmd.Flags().Int32Var(&f.maxUnavailable, "max-unavailable", 1, "how many workers are changed at a time in a way that disturbs what runs on them")
}

// addPlan adds the flags of commands that can show a plan, such as --dry-run and --plan, and those
// for the order in which hosts are changed.
func (f *runFlags) addPlan(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.pauseBetween, "pause-between", 0, "how long to wait between two waves of hosts that are disturbed: each control plane, and as many workers as --max-unavailable, are one")
	cmd.Flags().Int32Var(&f.haltAfter, "halt-after", 1, "after how many hosts that failed nothing more is begun; until then they are left out and the others go on")
	cmd.Flags().StringVar(&f.plan, "plan", "", "hash of a plan that was shown: do that plan without asking, or nothing if the hosts, the cluster's file or what it names has changed since")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the plan and its hash, as --output says, and do nothing")
	addOutput(cmd, &f.output)
}

// addVerbose adds the flag --verbose.
func addVerbose(cmd *cobra.Command, verbose *bool) {
	cmd.Flags().BoolVarP(verbose, "verbose", "v", false, "print a line when a step begins and when it ends")
}

// check returns a usageError if a flag has an invalid value, or if --output is set without
// --dry-run.
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

// operation returns a new Operation with an action for a cluster, and with the options from the
// flags. It has no name and is not stored; start does both. If --plan is set, operation sets f.yes,
// because the user has confirmed the plan before.
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

// show prints the plan of op on s.out in the format of --output, for --dry-run. If there are
// changes and the format is a table, it prints on s.err the command line that does exactly this
// plan. That has the arguments and flags of this command, and more, further flags for it. show
// changes no host, but new keys of the cluster are stored, as Engine.PlanFor does.
func (f *runFlags) show(ctx context.Context, s streams, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, more ...string) error {
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
		return say(s.err, "do this and nothing else with: %s\n", commandOfPlan(f.cmd, f.cmd.CommandPath(), changes.Hash, more...))
	})
}

// commandOfPlan returns the command line that does exactly the plan with a hash: path, such as
// "orrery cluster apply", with the arguments of cmd and the flags that the user set for cmd. It
// leaves out flags that say how a plan is shown, and flags that more has. more are further parts of
// the command line. Parts are quoted for a shell where needed. Passwords in URLs are replaced, as
// in other messages.
func commandOfPlan(cmd *cobra.Command, path, hash string, more ...string) string {
	parts := append([]string{}, cmd.Flags().Args()...)
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch name := "--" + flag.Name; {
		case slices.Contains([]string{"dry-run", "output", "verbose", "plan", "yes"}, flag.Name), slices.Contains(more, name):
		case flag.Name == "filename":
			parts = append(parts, "-f", flag.Value.String())
		case flag.Value.Type() == "bool" && flag.Value.String() == "true":
			parts = append(parts, name)
		case flag.Value.Type() == "bool":
			parts = append(parts, name+"="+flag.Value.String())
		default:
			values := []string{flag.Value.String()}
			if list, ok := flag.Value.(pflag.SliceValue); ok {
				values = list.GetSlice()
			}
			for _, value := range values {
				parts = append(parts, name, neutral.ShownLocation(value))
			}
		}
	})
	parts = append(parts, more...)
	parts = append(parts, "--plan", hash)
	for i, part := range parts {
		parts[i] = shellWord(part)
	}
	return path + " " + strings.Join(parts, " ")
}

// shellWord returns text as one word of a command line for a POSIX shell. It quotes text that has
// other characters than letters, digits and those without a meaning for a shell.
func shellWord(text string) string {
	const plain = "-_./:,=@%+"
	special := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(plain, r)
	}
	if text != "" && !strings.ContainsFunc(text, special) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// start stores a new Operation, which names it, and runs it to its end. If Engine.Check refuses the
// Operation, or the cluster has an unfinished one, start returns an error and stores nothing. Other
// errors are those of run.
func start(ctx context.Context, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
	if err := e.Check(ctx, op, spec); err != nil {
		return err
	}
	if err := e.Env.Create(ctx, op); err != nil {
		return err
	}
	return run(ctx, e, op, spec, "run the same command again")
}

// run runs a stored Operation to its end, and changes op.Status. spec is the wanted spec of a new
// Operation; a resumed one uses the spec that it began with. An error says what the user can do;
// again is a part of that advice, such as "resume it again". ErrPaused and ErrCanceled are returned
// unchanged.
func run(ctx context.Context, e *lifecycle.Engine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision, again string) error {
	err := e.Run(ctx, op, spec)
	if err == nil || errors.Is(err, lifecycle.ErrPaused) || errors.Is(err, lifecycle.ErrCanceled) {
		return err
	}
	// The run may have changed hosts, which a rollback undoes.
	if op.Spec.Action == lifecyclev1alpha1.ActionApply && op.Status.PlanHash != "" {
		again += fmt.Sprintf(", or go back with %q", "orrery cluster rollback "+op.Spec.Cluster)
	}
	return fmt.Errorf("operation %s: %w\nCorrect what is wrong and %s: what is done is not done twice. See %q for the steps",
		op.Name, err, again, "orrery operation show "+op.Name)
}
