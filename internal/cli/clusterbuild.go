package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/neutral"
)

// joinTimeout limits the time in which a built cluster must join.
const joinTimeout = time.Minute

// build builds or changes a cluster from a file.
type build struct {
	streams
	runFlags

	hub   *hubFlags
	file  fileFlag
	join  bool
	again string // the command to repeat, if there is no file
}

func newBuild(s streams, hub *hubFlags) *build { return &build{streams: s, hub: hub} }

func (b *build) add(cmd *cobra.Command) {
	b.runFlags.add(cmd)
	b.addPlan(cmd)
	b.file.add(cmd)
	cmd.Flags().BoolVar(&b.join, "join", false, "then join the cluster to the hub, with the labels, provider, region and zones that the file gives it")
}

// read returns the cluster in the file, and its recorded state; nil for a new cluster.
func (b *build) read(ctx context.Context) (*clusterv1alpha1.Cluster, *lifecycle.State, error) {
	if err := b.check(); err != nil {
		return nil, nil, err
	}
	c, err := b.file.read(b.streams)
	if err != nil {
		return nil, nil, err
	}
	if b.source != "" {
		c.Spec.Provision.Source = b.source // a resumed run must use it, too
	}
	state, err := b.files().Load(ctx, c.Name)
	return c, state, err
}

func newCreate(s streams, hub *hubFlags) *cobra.Command {
	b := newBuild(s, hub)
	cmd := &cobra.Command{
		Use:   "create -f FILE",
		Short: "Build a cluster on hosts",
		Long: `Build a cluster on the hosts that a file names: look at them, plan, show the plan and ask,
then do it on all hosts at once. A run that is interrupted, by Ctrl-C or by kill -9, goes
on with "orrery operation resume".`,
		Example: `  orrery cluster config oak > oak.yaml
  orrery cluster create -f oak.yaml
  orrery cluster kubeconfig oak > oak.kubeconfig`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, state, err := b.read(ctx)
			if err != nil {
				return err
			}
			if state != nil && state.Applied != nil {
				return fmt.Errorf("cluster %s is there already: change it with %q", c.Name, "orrery cluster apply -f "+b.file.path)
			}
			if err := keepsHosts(c, state); err != nil {
				return err
			}
			op := b.operation(c.Name, lifecyclev1alpha1.ActionCreate)
			return b.run(ctx, c, c.Spec.Provision, op, fmt.Sprintf("Build cluster %s?", c.Name))
		},
	}
	b.add(cmd)
	return cmd
}

func newApply(s streams, hub *hubFlags) *cobra.Command {
	b := newBuild(s, hub)
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Change a cluster that was built from here to what its file says",
		Long: `Change a cluster that was built from here to what its file says, and repair what is no
longer as it was left. What is so already is not touched: with nothing to do, no host is
changed. Hosts are removed by "orrery cluster delete-node" only.

Control planes are changed one after another, workers as many at a time as
--max-unavailable allows. What disturbs more than a reload is shown and asked for; where
nobody can be asked it needs --yes or --plan.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, state, err := b.read(ctx)
			if err != nil {
				return err
			}
			if err := b.isBuilt(c.Name, state); err != nil {
				return err
			}
			if err := keepsHosts(c, state); err != nil {
				return err
			}
			op := b.operation(c.Name, lifecyclev1alpha1.ActionApply)
			return b.run(ctx, c, c.Spec.Provision, op, fmt.Sprintf("Change cluster %s?", c.Name))
		},
	}
	b.add(cmd)
	return cmd
}

func newAddNode(s streams, hub *hubFlags) *cobra.Command {
	b := newBuild(s, hub)
	var names []string
	cmd := &cobra.Command{
		Use:   "add-node -f FILE",
		Short: "Add the hosts that are new in a cluster's file",
		Long: `Add hosts to a cluster that was built from here: those that its file has and the cluster
has not, in the roles that the file gives them, workers and control planes alike. Nothing
else that is new in the file is applied.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, state, err := b.read(ctx)
			if err != nil {
				return err
			}
			if err := b.isBuilt(c.Name, state); err != nil {
				return err
			}
			spec, added, err := state.With(c.Spec.Provision, names)
			switch {
			case err != nil && len(names) > 0:
				return fmt.Errorf("--hosts: %w", err)
			case err != nil:
				return err
			case len(added) == 0:
				return errors.New("the file has no host that is not part of the cluster: add it under hosts and roleGroups")
			}
			op := b.operation(c.Name, lifecyclev1alpha1.ActionAddNode)
			op.Spec.AddNode.Hosts = added
			return b.run(ctx, c, spec, op, fmt.Sprintf("Add %s to cluster %s?", hostNames(added), c.Name))
		},
	}
	b.add(cmd)
	cmd.Flags().StringSliceVar(&names, "hosts", nil, "add only these of the new hosts")
	return cmd
}

func (b *build) isBuilt(name string, state *lifecycle.State) error {
	if state == nil || state.Applied == nil {
		return fmt.Errorf("cluster %s is not built yet, as far as %s knows: build it with %q, or look elsewhere with --state-dir",
			name, b.dir, "orrery cluster create -f "+b.file.path)
	}
	return nil
}

// keepsHosts returns an error if the file lacks hosts of its cluster: a missing line is not a
// request to remove the host.
func keepsHosts(c *clusterv1alpha1.Cluster, state *lifecycle.State) error {
	applied, begun := state.Intent().Lost(c.Spec.Provision)
	switch {
	case len(applied) > 0:
		return fmt.Errorf("the file lacks %s, part of cluster %s: put them back in hosts, or take them out of the cluster with %q",
			hostNames(applied), c.Name, "orrery cluster delete-node "+c.Name+" "+strings.Join(applied, " "))
	case len(begun) > 0 && state.Applied != nil:
		return fmt.Errorf("the file lacks %s, which a run has begun to add to cluster %s: put them back in hosts, or take them out with %q",
			hostNames(begun), c.Name, "orrery cluster delete-node "+c.Name+" "+strings.Join(begun, " "))
	case len(begun) > 0:
		return fmt.Errorf("the file lacks %s, which an unfinished run has begun to change: put them back in hosts, or undo all of it with %q and begin anew",
			hostNames(begun), "orrery cluster delete "+c.Name)
	}
	return nil
}

// run shows the effect of an Operation, asks for confirmation, runs it, and joins the cluster if
// requested.
func (b *build) run(ctx context.Context, c *clusterv1alpha1.Cluster, spec *clusterv1alpha1.Provision, op *lifecyclev1alpha1.Operation, question string) error {
	progress := newRunProgress(b.err, b.verbose)
	e, err := b.engine(c.Name, progress)
	if err != nil {
		return err
	}
	if b.dryRun {
		return b.show(ctx, b.streams, e, op, spec, b.command(op))
	}
	// Check before the work that the hub is reachable.
	var fleet client.WithWatch
	var hubID string
	if b.join {
		var err error
		if _, fleet, hubID, err = b.hub.connect(ctx); err != nil {
			return err
		}
	}
	creates := op.Spec.Action == lifecyclev1alpha1.ActionCreate
	if !b.yes && (b.interactive() || !creates) {
		changes, err := e.PlanFor(ctx, op, spec)
		if _, away := errors.AsType[*lifecycle.AwayError](err); away && !creates {
			err = fmt.Errorf("%w\nWith --yes hosts that are part of the cluster and do not answer, or refuse the login, stay as they are, and the others are changed", err)
		}
		if err != nil {
			return err
		}
		if err := agree(ctx, b.streams, question, changes, !creates); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := start(ctx, e, op, spec); err != nil {
		return err
	}
	if left := op.Status.Message; left != "" {
		if err := say(b.err, "%s\n", neutral.Indented(left)); err != nil {
			return err
		}
	}
	hosts := op.Status.Hosts
	changed := 0
	for _, h := range hosts {
		if h.State == lifecyclev1alpha1.StepChanged && h.Name != "cluster" {
			changed++
		}
	}
	if err := say(b.out, "cluster %s: Kubernetes %s on %d hosts, %d of them changed, in %s\nkubeconfig: %s\n", c.Name, spec.Kubernetes.Version,
		len(spec.Hosts), changed, time.Since(began).Round(time.Second/10), b.files().Path(c.Name, "kubeconfig")); err != nil {
		return err
	}
	if !b.join {
		return nil
	}
	return b.joinHub(ctx, fleet, hubID, c)
}

// command returns the command line that repeats an Operation.
func (b *build) command(op *lifecyclev1alpha1.Operation) string {
	if b.again != "" {
		return b.again
	}
	switch op.Spec.Action {
	case lifecyclev1alpha1.ActionCreate:
		return "orrery cluster create -f " + b.file.path
	case lifecyclev1alpha1.ActionAddNode:
		return "orrery cluster add-node -f " + b.file.path + " --hosts " + strings.Join(op.Spec.NamedHosts(), ",")
	case lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionDeleteNode, lifecyclev1alpha1.ActionDelete, lifecyclev1alpha1.ActionRenewCertificates:
	}
	return "orrery cluster apply -f " + b.file.path
}

// joinHub joins a built cluster, in the same way as with a given kubeconfig.
func (b *build) joinHub(ctx context.Context, fleet client.WithWatch, hubID string, c *clusterv1alpha1.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	kubeconfig, err := readKubeconfig(b.files(), c.Name)
	if err != nil {
		return err
	}
	if _, err := member.Join(ctx, fleet, member.JoinOptions{
		Name: c.Name, Kubeconfig: kubeconfig, HubID: hubID,
		Labels: c.Labels, Provider: c.Spec.Provider, Region: c.Spec.Region, Zones: c.Spec.Zones,
	}); err != nil {
		return fmt.Errorf("cluster %s is built, but did not join the hub: %w; try again with %q", c.Name, err, "orrery cluster apply --join -f "+b.file.path)
	}
	if _, err := member.WaitReady(ctx, fleet, c.Name); err != nil {
		return fmt.Errorf("wait for cluster %s: %w; it stays joined, see %q", c.Name, err, "orrery cluster describe "+c.Name)
	}
	return say(b.out, "cluster %s has joined the hub and is ready\n", c.Name)
}
