package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/neutral"
)

func newOperation(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operation",
		Short: "List, show, resume, pause and cancel the runs that build and change clusters",
		Long: `List, show, resume, pause and cancel the runs that build, change and remove clusters from
this machine. Those of the hub are objects: "kubectl get operations", and every step of
theirs is in "kubectl get operationslices".`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newOperationList(s), newOperationShow(s), newResume(s), newPause(s), newCancel(s))
	return cmd
}

// oneOperation checks the arguments of a command: it returns a usageError unless there is exactly
// one, the name of an Operation.
func oneOperation(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("want exactly one argument, the operation's name; see %q", cmd.CommandPath()+" --help")}
	}
	return nil
}

// operation reads the record of an Operation from --state-dir. Its name is that of the cluster and
// a number, such as oak-1; an invalid name is a usageError.
func (f *stateFlags) operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error) {
	i := max(strings.LastIndex(name, "-"), 0)
	if err := checkName(name[:i]); err != nil {
		return nil, usageError{fmt.Errorf("%q is no name of an operation, such as oak-1; see %q", name, "orrery operation list")}
	}
	return f.files().Operation(ctx, name)
}

func newOperationList(s streams) *cobra.Command {
	var (
		f      stateFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "list [CLUSTER]",
		Short: "List the runs of a cluster, or of all",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArgs(cmd, args[1:])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster := ""
			if len(args) == 1 {
				if cluster = args[0]; checkName(cluster) != nil {
					return checkName(cluster)
				}
			}
			ops, err := f.files().Operations(cmd.Context(), cluster)
			if err != nil {
				return err
			}
			list := lifecyclev1alpha1.OperationList{
				TypeMeta: metav1.TypeMeta{APIVersion: lifecyclev1alpha1.GroupVersion.String(), Kind: "OperationList"}, Items: ops,
			}
			return printValue(s.out, output, list, func(w io.Writer) error { return f.printOperations(w, ops) })
		},
	}
	f.add(cmd)
	addOutput(cmd, &output)
	return cmd
}

// printOperations prints a table of Operations.
func (f *stateFlags) printOperations(w io.Writer, ops []lifecyclev1alpha1.Operation) error {
	if len(ops) == 0 {
		return say(w, "No operations found on this machine, in %s. Those of the hub: kubectl --context hub get operations\n", f.dir)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_ = say(t, "NAME\tCLUSTER\tACTION\tPHASE\tSTEPS\tTOOK\tAGE\n") // Flush returns the error
	for _, op := range ops {
		// Flush returns the error.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", op.Name, op.Spec.Cluster, op.Spec.Action, f.phase(&op),
			cmp.Or(count("", op.Status.StepsDone, op.Status.StepsTotal), "-"), took(op.Status.Started, op.Status.Finished),
			duration.HumanDuration(time.Since(op.CreationTimestamp.Time)))
	}
	return t.Flush()
}

// interrupted is the phase that is printed for a run whose process was killed: its record says
// Running, and no process runs it. It is never stored.
const interrupted = "Interrupted"

// phase returns the phase of an Operation for the user. It is interrupted if the record says
// Running and no process on this machine works on the cluster. Otherwise, or if that is unknown, it
// is the phase in the record.
func (f *stateFlags) phase(op *lifecyclev1alpha1.Operation) string {
	if op.Status.Phase == lifecyclev1alpha1.PhaseRunning {
		if busy, err := f.files().IsBusy(op.Spec.Cluster); err == nil && !busy {
			return interrupted
		}
	}
	return string(op.Status.Phase)
}

// took returns the time between two moments in tenths of a second, such as 12.3s; "-" if a
// moment is missing.
func took(started, finished *metav1.MicroTime) string {
	if started.IsZero() || finished.IsZero() {
		return "-"
	}
	return finished.Sub(started.Time).Round(time.Second / 10).String()
}

func newOperationShow(s streams) *cobra.Command {
	var (
		f      stateFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a run: its hosts and failed steps, or with -o wide every step",
		Args:  oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := f.operation(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printValue(s.out, output, op, func(w io.Writer) error {
				return f.printOperation(w, op, output == outputWide)
			})
		},
	}
	f.add(cmd)
	addOutput(cmd, &output)
	return cmd
}

// printOperation prints an Operation with its hosts and failed steps; if wide, with all steps.
func (f *stateFlags) printOperation(w io.Writer, op *lifecyclev1alpha1.Operation, wide bool) error {
	st := &op.Status
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(format string, args ...any) {
		_ = say(t, format+"\n", args...) // Flush returns the error
	}
	row("Name:\t%s", op.Name)
	row("Cluster:\t%s", op.Spec.Cluster)
	row("Action:\t%s", strings.TrimSpace(string(op.Spec.Action)+" "+strings.Join(op.Spec.NamedHosts(), ", ")))
	row("Phase:\t%s", f.phase(op))
	if st.Message != "" {
		row("Message:\t%s", neutral.Trusted(strings.Join(neutral.Lines(st.Message), "\n\t")))
	}
	if !st.Started.IsZero() {
		row("Started:\t%s", st.Started.UTC().Format(time.RFC3339))
	}
	if !st.Finished.IsZero() {
		row("Took:\t%s", took(st.Started, st.Finished))
	}
	if st.Attempt > 1 {
		row("Attempts:\t%d", st.Attempt)
	}
	if st.PlanHash != "" {
		row("Plan:\t%s", st.PlanHash)
	}
	row("Logs:\t%s", f.files().Path(op.Spec.Cluster, "logs", op.Name))
	if len(st.Hosts) > 0 {
		row("\nHOST\tSTATE\tSTAGE\tSTEPS\tROUND TRIPS\tTOOK")
	}
	spans := spansOf(st.Steps)
	for _, h := range st.Hosts {
		row("%s\t%s\t%s\t%s\t%d\t%s", h.Name, h.State, cmp.Or(h.Stage, "-"), cmp.Or(count("", h.Done, h.Total), "-"), h.RoundTrips, spans[h.Name])
	}
	steps := st.Steps
	if !wide {
		steps = slices.DeleteFunc(slices.Clone(steps), func(r lifecyclev1alpha1.StepRecord) bool { return r.State != lifecyclev1alpha1.StepFailed })
	}
	if len(steps) > 0 {
		row("\nHOST\tSTEP\tSTATE\tATTEMPT\tTOOK\tMESSAGE")
	}
	for _, r := range steps {
		row("%s\t%s\t%s\t%d\t%s\t%s", r.Host, r.ID, r.State, r.Attempt, took(&r.Started, &r.Finished), strings.Join(strings.Fields(r.Message), " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if canResume(op) {
		return say(w, "\nGo on with: orrery operation resume %s%s\n", op.Name, f.again())
	}
	return nil
}

// spansOf returns by host how long the run worked on it, such as 12.3s: from the begin of its first
// step to the end of its last. It is "-" if none has ended. Hosts on which no step has begun are
// left out.
func spansOf(steps []lifecyclev1alpha1.StepRecord) map[string]string {
	first, last := map[string]metav1.MicroTime{}, map[string]metav1.MicroTime{}
	for _, r := range steps {
		if f, ok := first[r.Host]; !r.Started.IsZero() && (!ok || r.Started.Before(&f)) {
			first[r.Host] = r.Started
		}
		if l := last[r.Host]; l.Before(&r.Finished) {
			last[r.Host] = r.Finished
		}
	}
	spans := map[string]string{}
	for host := range first {
		spans[host] = took(new(first[host]), new(last[host]))
	}
	return spans
}

// canResume reports whether an Operation has neither succeeded nor been canceled. It is also true
// while a process runs the Operation.
func canResume(op *lifecyclev1alpha1.Operation) bool {
	return op.Status.Phase != lifecyclev1alpha1.PhaseSucceeded && op.Status.Phase != lifecyclev1alpha1.PhaseCanceled
}

func newResume(s streams) *cobra.Command {
	var (
		f       engineFlags
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Resume a run that was paused, interrupted or killed, or that failed",
		Long: `Go on with a run that was paused, interrupted or killed, or that failed, as it was started:
with the spec and the credentials that its file had then. What is done is not done twice.
--catalog, --agent, --cache and the flags of host keys are to be given again if they were
given.`,
		Args: oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			op, err := f.operation(ctx, args[0])
			if err != nil {
				return err
			}
			ops, err := f.files().Operations(ctx, op.Spec.Cluster)
			if err != nil {
				return err
			}
			switch last := ops[len(ops)-1].Name; {
			case op.Status.Phase == lifecyclev1alpha1.PhaseSucceeded:
				return fmt.Errorf("operation %s has succeeded: there is nothing left to do", op.Name)
			case op.Status.Phase == lifecyclev1alpha1.PhaseCanceled:
				return fmt.Errorf("operation %s was canceled: start a new one", op.Name)
			case last != op.Name:
				return fmt.Errorf("operation %s is not the last of cluster %s, which %s is: start a new one, for the cluster has changed since", op.Name, op.Spec.Cluster, last)
			}
			e, err := f.engine(op.Spec.Cluster, newRunProgress(s.err, verbose))
			if err != nil {
				return err
			}
			if err := e.Env.Control(ctx, op.Name, func(spec *lifecyclev1alpha1.OperationSpec) { spec.Paused = false }); err != nil {
				return err
			}
			op.Spec.Paused = false
			if err := run(ctx, e, op, nil, "resume it again"); err != nil {
				return err
			}
			return say(s.out, "operation %s was resumed and has succeeded: %s of cluster %s\n", op.Name, op.Spec.Action, op.Spec.Cluster)
		},
	}
	f.add(cmd)
	addVerbose(cmd, &verbose)
	return cmd
}

func newPause(s streams) *cobra.Command {
	var f stateFlags
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Pause a run after the running steps; it can be resumed",
		Args:  oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.stop(cmd.Context(), s, args[0], lifecyclev1alpha1.PhasePaused, func(spec *lifecyclev1alpha1.OperationSpec) { spec.Paused = true })
		},
	}
	f.add(cmd)
	return cmd
}

func newCancel(s streams) *cobra.Command {
	var f stateFlags
	cmd := &cobra.Command{
		Use:   "cancel NAME",
		Short: "Cancel a run after the running steps; what was done stays",
		Long: `End a run after the steps that are under way. What was done stays: "orrery cluster apply"
goes on from there, and "orrery cluster delete" takes it back.`,
		Args: oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.stop(cmd.Context(), s, args[0], lifecyclev1alpha1.PhaseCanceled, func(spec *lifecyclev1alpha1.OperationSpec) { spec.Canceled = true })
		},
	}
	f.add(cmd)
	return cmd
}

// stop pauses or cancels the Operation with a name, and prints the result. It stores the request,
// which ask sets in the spec, for the process that runs the Operation, and does not wait for that
// process. If no process runs it, stop itself sets the phase, Paused or Canceled. An Operation that
// has ended is an error, and so is a lock that cannot be read.
func (f *stateFlags) stop(ctx context.Context, s streams, name string, phase lifecyclev1alpha1.Phase, ask func(*lifecyclev1alpha1.OperationSpec)) error {
	op, err := f.operation(ctx, name)
	if err != nil {
		return err
	}
	if !lifecycle.Unfinished(op) {
		return fmt.Errorf("operation %s has ended already: it is %s", name, op.Status.Phase)
	}
	files := f.files()
	if err := files.Control(ctx, name, ask); err != nil {
		return err
	}
	unlock, err := files.Lock(ctx, op.Spec.Cluster)
	if errors.Is(err, lifecycle.ErrLocked) {
		return say(s.out, "operation %s is asked to stop after the steps that are under way\n", name)
	}
	if err != nil {
		return fmt.Errorf("operation %s is asked to stop, but it is unknown whether a process runs it: %w; correct that and run the command again", name, err)
	}
	defer unlock()
	// The operation may have ended before the lock was taken.
	if op, err = files.Operation(ctx, name); err != nil {
		return err
	}
	if lifecycle.Unfinished(op) {
		closeRecord(op, phase)
		if err := files.Record(ctx, op); err != nil {
			return err
		}
	}
	return say(s.out, "operation %s is %s\n", name, op.Status.Phase)
}

// closeRecord sets the status of an Operation that no process runs to the phase Paused or Canceled.
// It changes only op and stores nothing. Canceled also sets the end of the run and the condition
// Succeeded to False.
func closeRecord(op *lifecyclev1alpha1.Operation, phase lifecyclev1alpha1.Phase) {
	st := &op.Status
	st.Phase, st.Estimate = phase, nil
	for i := range st.Hosts {
		if st.Hosts[i].State == lifecyclev1alpha1.StepRunning {
			st.Hosts[i].State = lifecyclev1alpha1.StepPending
		}
	}
	if phase != lifecyclev1alpha1.PhaseCanceled {
		st.Message = "stopped; it can be resumed"
		return
	}
	st.Message, st.Finished = "canceled; what was done stays", new(metav1.NowMicro())
	meta.SetStatusCondition(&st.Conditions, metav1.Condition{
		Type: lifecyclev1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: string(phase), Message: st.Message,
	})
}
