package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

func newPreflight(s streams) *cobra.Command {
	var (
		f      engineFlags
		file   fileFlag
		output string
	)
	cmd := &cobra.Command{
		Use:   "preflight -f FILE",
		Short: "Check whether hosts can become, or stay, a cluster",
		Long: `Look at the hosts of a cluster and say what stands in the way, with the way out. Nothing is
changed, except that a short file is written and removed to time the disk. The exit code
is 1 if there are errors; warnings leave it 0.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := readOfCluster(cmd.Context(), s, &file, &f)
			if err != nil {
				return err
			}
			e, err := f.engine(c.Name, newRunProgress(s.err, false))
			if err != nil {
				return err
			}
			findings, err := e.Preflight(cmd.Context(), c.Spec.Provision)
			if err != nil {
				return err
			}
			if findings == nil {
				findings = []plan.Finding{} // encoded as an empty list in JSON
			}
			if err := printValue(s.out, output, findings, func(w io.Writer) error { return printFindings(w, findings) }); err != nil {
				return err
			}
			errs := 0
			for _, finding := range findings {
				if finding.Severity == plan.SeverityError {
					errs++
				}
			}
			if errs > 0 {
				return fmt.Errorf("the hosts are not ready: %d of %d findings are errors", errs, len(findings))
			}
			return nil
		},
	}
	f.add(cmd)
	file.add(cmd)
	addOutput(cmd, &output)
	return cmd
}

// readOfCluster returns the cluster that a file describes, and its recorded state, which is nil for
// a new cluster, for preflight and plan. It is an error if the file lacks a host of the cluster, as
// keepsHosts says.
func readOfCluster(ctx context.Context, s streams, file *fileFlag, f *engineFlags) (*clusterv1alpha1.Cluster, *lifecycle.State, error) {
	c, err := file.read(s)
	if err != nil {
		return nil, nil, err
	}
	state, err := f.files().Load(ctx, c.Name)
	if err != nil {
		return nil, nil, err
	}
	return c, state, keepsHosts(c, state)
}

// printFindings prints a table of the findings of a preflight: what prevents the hosts from
// becoming a cluster, with the fix. Without findings it prints that.
func printFindings(w io.Writer, findings []plan.Finding) error {
	if len(findings) == 0 {
		return say(w, "Nothing stands in the way.\n")
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_ = say(t, "HOST\tCHECK\tSEVERITY\tFINDING\n") // Flush returns the error
	for _, f := range findings {
		_ = say(t, "%s\t%s\t%s\t%s; %s\n", f.Host, f.Check, f.Severity, f.Message, f.Fix)
	}
	return t.Flush()
}

func newPlan(s streams) *cobra.Command {
	var (
		f       engineFlags
		file    fileFlag
		verbose bool
		output  string
	)
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Show what would change on which host, and what that disturbs",
		Long: `Show what "create" or "apply" would change on each host: + is added, ~ changed, ! repaired
and - removed, with what the change disturbs in brackets. Nothing is changed. The last
line has the hash of the plan: "create" or "apply" with --plan HASH does this plan or
nothing. The commands that change a cluster show theirs with --dry-run.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, state, err := readOfCluster(cmd.Context(), s, &file, &f)
			if err != nil {
				return err
			}
			e, err := f.engine(c.Name, newRunProgress(s.err, false))
			if err != nil {
				return err
			}
			_, changes, err := e.Plan(cmd.Context(), c.Spec.Provision)
			if err != nil {
				return err
			}
			return printValue(s.out, output, changes, func(w io.Writer) error {
				if verbose {
					changes.PrintDetail(w)
				} else {
					changes.Print(w)
				}
				switch {
				case state == nil || state.Applied == nil:
					return say(s.err, "build it with: %s\n", commandOfPlan(cmd, cmd.Parent().CommandPath()+" create", changes.Hash))
				case !changes.Nothing():
					return say(s.err, "do this and nothing else with: %s\n", commandOfPlan(cmd, cmd.Parent().CommandPath()+" apply", changes.Hash))
				}
				return nil
			})
		},
	}
	f.add(cmd)
	file.add(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show how the contents of files differ")
	addOutput(cmd, &output)
	return cmd
}

// disturbs reports whether any change disrupts running programs more than a reload does, so that
// the user must confirm.
func disturbs(changes *plan.Changes) bool {
	return slices.ContainsFunc(changes.Items, func(i plan.Change) bool { return plan.Worse(i.Disruption, plan.DisruptionReload) }) ||
		slices.ContainsFunc(changes.Steps, func(s plan.ClusterStep) bool { return plan.Worse(s.Disruption(), plan.DisruptionReload) })
}

// errNeedsYes is the error if the user must confirm a change, but standard input is not a terminal
// and --yes is not set.
var errNeedsYes = errors.New("standard input is not a terminal, so nobody can be asked: agree with --yes")

// agree shows the changes on s.err and asks question. If full is false, it shows only a summary. It
// returns errDeclined if the user declines, and nil without changes. Without a terminal it does not
// ask: the result is errNeedsYes if a change disrupts more than a reload, otherwise nil.
func agree(ctx context.Context, s streams, question string, changes *plan.Changes, full bool) error {
	if changes.Nothing() {
		return nil
	}
	if full {
		changes.Print(s.err)
	} else if err := say(s.err, "%s\n", changes.Summary()); err != nil {
		return err
	}
	switch {
	case s.interactive():
		return s.confirm(ctx, question)
	case disturbs(changes):
		return errNeedsYes
	}
	return nil
}
