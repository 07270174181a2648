package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

func newRollback(s streams) *cobra.Command {
	b := newBuild(s, nil)
	cmd := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Undo the last change of a cluster that was built from here",
		Long: `Make a cluster that was built from here what it was before the last change of its settings:
what was applied last, if a run that changes it has failed, or else what was applied before
that. Its hosts are those that it has now. It is done as "apply" does it, with a plan that is
shown and asked for; where nobody can be asked it needs --yes or --plan.

Kubernetes goes back to an older patch of its minor, never to an older minor. The cluster's file
is not changed: correct it before it is applied again.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), args[0]
			if err := b.check(); err != nil {
				return err
			}
			state, err := b.built(ctx, name)
			if err != nil {
				return err
			}
			spec, err := state.Rollback()
			if err != nil {
				return fmt.Errorf("roll back cluster %s: %w", name, err)
			}
			op := b.operation(name, lifecyclev1alpha1.ActionApply)
			c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := b.run(ctx, c, spec, op, fmt.Sprintf("Roll back cluster %s?", name)); err != nil {
				return err
			}
			if b.dryRun {
				return nil
			}
			return say(b.err, "the file of cluster %s still has the change: correct it before it is applied again\n", name)
		},
	}
	b.runFlags.add(cmd)
	b.addPlan(cmd)
	return cmd
}
