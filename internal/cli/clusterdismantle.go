package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
)

// forgetUsage is the help text of the flag --forget-unreachable.
const forgetUsage = "hosts that cannot be reached or logged in to, or lost the record of what was done on them, are gone for good: go on without undoing anything on them"

func newDeleteNode(s streams) *cobra.Command {
	var (
		f      runFlags
		logins loginsFlag
		forget bool
	)
	cmd := &cobra.Command{
		Use:   "delete-node NAME HOST...",
		Short: "Remove hosts from a cluster: workers and control planes, also dead ones",
		Long: `Take hosts out of a cluster that was built from here: cordon and drain them within the
disruption budgets, take their members out of etcd, tell the other hosts, and undo what
was done on them. Nothing is begun that would cost etcd its quorum.

A host that cannot be reached or logged in to is unknown, not gone, and is refused unless
--forget-unreachable says so. If only its login has changed, name a file with the present
one with -f. Take the hosts out of the cluster's file afterwards.`,
		Example: `  orrery cluster delete-node oak oak-5
  orrery cluster delete-node oak oak-5 -f oak.yaml
  orrery cluster delete-node oak oak-2 --forget-unreachable`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError{fmt.Errorf("want the cluster's name and the hosts to take out; see %q", cmd.CommandPath()+" --help")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			name, hosts := args[0], slices.Compact(slices.Sorted(slices.Values(args[1:])))
			if err := f.check(); err != nil {
				return err
			}
			state, err := f.built(ctx, name)
			if err != nil {
				return err
			}
			if state.Applied == nil {
				return fmt.Errorf("cluster %s is not built yet: finish that first, or take all of it back with %q", name, "orrery cluster delete "+name)
			}
			present, err := logins.read(s, name)
			if err != nil {
				return err
			}
			state.Login(present)
			spec, err := state.Without(name, hosts, false)
			if err != nil {
				return err
			}
			e, err := f.engine(name, newRunProgress(s.err, f.verbose))
			if err != nil {
				return err
			}
			e.Logins = present
			op := f.operation(name, lifecyclev1alpha1.ActionDeleteNode)
			op.Spec.DeleteNode.Hosts, op.Spec.DeleteNode.Unreachable = hosts, unreachable(forget)
			switch {
			case f.dryRun:
				return f.show(ctx, s, e, op, spec)
			case f.yes:
			case !s.interactive():
				return errNeedsYes
			default:
				changes, err := e.PlanFor(ctx, op, spec)
				if err != nil {
					return err
				}
				changes.Print(s.err)
				if err := s.confirmLeaving(ctx, name, hosts, changes.Undone); err != nil {
					return err
				}
			}
			if err := start(ctx, e, op, spec); err != nil {
				return err
			}
			if left := op.Status.Message; left != "" {
				if err := say(s.err, "%s\n", neutral.Indented(left)); err != nil {
					return err
				}
			}
			return say(s.out, "cluster %s has %d hosts, without %s; take them out of its file too\n", name, len(spec.Hosts), hostNames(hosts))
		},
	}
	f.add(cmd)
	f.addPlan(cmd)
	logins.add(cmd)
	cmd.Flags().BoolVar(&forget, "forget-unreachable", false, forgetUsage)
	return cmd
}

func newDelete(s streams) *cobra.Command {
	var (
		f      runFlags
		logins loginsFlag
		forget bool
	)
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a cluster: its hosts become as they were before it, and its data is lost",
		Long: `Undo a cluster that was built from here, on all its hosts: exactly what was done is undone,
and what was there before comes back. The cluster's data are lost: its name has to be
typed, or --yes given. A cluster that has joined a hub is to leave it first, with
"orrery cluster unjoin".`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), args[0]
			if err := f.check(); err != nil {
				return err
			}
			state, err := f.built(ctx, name)
			if err != nil {
				return err
			}
			present, err := logins.read(s, name)
			if err != nil {
				return err
			}
			state.Login(present)
			spec := state.Everything()
			if spec == nil {
				return fmt.Errorf("cluster %s has no hosts that were ever changed: there is nothing to undo", name)
			}
			e, err := f.engine(name, newRunProgress(s.err, f.verbose))
			if err != nil {
				return err
			}
			e.Logins = present
			op := f.operation(name, lifecyclev1alpha1.ActionDelete)
			op.Spec.Delete.Unreachable = unreachable(forget)
			switch {
			case f.dryRun:
				return f.show(ctx, s, e, op, spec)
			case f.yes:
			case !s.interactive():
				return errors.New("standard input is not a terminal, so the cluster's name cannot be typed: agree with --yes")
			default:
				changes, err := e.PlanFor(ctx, op, spec)
				if err != nil {
					return err
				}
				changes.Print(s.err)
				question := fmt.Sprintf("Cluster %s on %s is undone, and its data are lost. Type its name to go on:", name, hostNames(namesOf(spec)))
				if err := s.confirmName(ctx, question, name); err != nil {
					return err
				}
			}
			if err := start(ctx, e, op, spec); err != nil {
				return err
			}
			return say(s.out, "cluster %s is gone\n", name)
		},
	}
	f.add(cmd)
	f.addPlan(cmd)
	logins.add(cmd)
	cmd.Flags().BoolVar(&forget, "forget-unreachable", false, forgetUsage)
	return cmd
}

// confirmLeaving asks the user whether hosts should be removed from a cluster, and returns
// errDeclined unless the user agrees. undone has those of the hosts on which all changes will be
// undone. If others remain, the user must type their names: such a host may still run and act as a
// part of the cluster.
func (s streams) confirmLeaving(ctx context.Context, cluster string, hosts, undone []string) error {
	forgotten := slices.DeleteFunc(slices.Clone(hosts), func(name string) bool { return slices.Contains(undone, name) })
	if len(forgotten) == 0 {
		return s.confirm(ctx, fmt.Sprintf("Take %s out of cluster %s and undo what was done on them?", hostNames(hosts), cluster))
	}
	names := strings.Join(forgotten, " ")
	return s.confirmName(ctx, fmt.Sprintf("Take %s out of cluster %s? Nothing on %s is undone. Type %q to go on:", hostNames(hosts), cluster, hostNames(forgotten), names), names)
}

// unreachable returns what an Operation does with hosts that cannot be reached: Forget if forget is
// true, otherwise Refuse.
func unreachable(forget bool) lifecyclev1alpha1.UnreachablePolicy {
	if forget {
		return lifecyclev1alpha1.UnreachableForget
	}
	return lifecyclev1alpha1.UnreachableRefuse
}

// namesOf returns the names of all hosts of a spec, in the order of the spec.
func namesOf(spec *clusterv1alpha1.Provision) []string {
	names := make([]string, 0, len(spec.Hosts))
	for _, h := range spec.Hosts {
		names = append(names, h.Name)
	}
	return names
}
