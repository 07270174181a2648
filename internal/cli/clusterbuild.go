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

// joinTimeout is how long a cluster that was just built may take to join the hub and become ready:
// one minute.
const joinTimeout = time.Minute

// build has the flags of the commands that build or change a cluster on hosts: create, apply,
// add-node and rollback.
type build struct {
	streams
	runFlags

	hub  *hubFlags
	file fileFlag
	join bool
}

func newBuild(s streams, hub *hubFlags) *build { return &build{streams: s, hub: hub} }

func (b *build) add(cmd *cobra.Command) {
	b.runFlags.add(cmd)
	b.addPlan(cmd)
	b.file.add(cmd)
	cmd.Flags().BoolVar(&b.join, "join", false, "then join the cluster to the hub, with the labels, provider, region and zones that the file gives it")
}

// read returns the cluster that the file of -f describes, and the recorded state of that cluster,
// which is nil if it is new. --source replaces the source in the file. Invalid flags, and a file
// that fileFlag.read refuses, are an error.
func (b *build) read(ctx context.Context) (*clusterv1alpha1.Cluster, *lifecycle.State, error) {
	if err := b.check(); err != nil {
		return nil, nil, err
	}
	c, err := b.file.read(b.streams)
	if err != nil {
		return nil, nil, err
	}
	if b.source != "" {
		c.Spec.Provision.Source = b.source // a resumed run must use the same source
	}
	state, err := b.files().Load(ctx, c.Name)
	return c, state, err
}

// newCreate returns the command "orrery cluster create".
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
		Short: "Change a cluster that was built from here, so that it matches its file",
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

// isBuilt returns an error with advice if the recorded state does not say that the cluster is
// completely built. state is nil for a cluster that is not recorded.
func (b *build) isBuilt(name string, state *lifecycle.State) error {
	if state == nil || state.Applied == nil {
		return fmt.Errorf("cluster %s is not built yet, as far as %s knows: build it with %q, or look elsewhere with --state-dir",
			name, b.dir, "orrery cluster create -f "+b.file.path)
	}
	return nil
}

// keepsHosts returns an error if the file of a cluster lacks hosts of the cluster, or hosts that an
// unfinished run has begun to change. A host that is missing in the file is not a request to remove
// that host. state is the recorded state; it may be nil.
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
		return fmt.Errorf("the file lacks %s, which an unfinished run has begun to change: put them back in hosts, or undo everything that the run did with %q, and start again",
			hostNames(begun), "orrery cluster delete "+c.Name)
	}
	return nil
}

// run builds or changes the cluster c by the Operation op, so that it matches spec. It plans, shows
// the changes, asks question, does the work, prints the result, and with --join joins the cluster
// to the hub. With --dry-run it only shows the plan. --yes and --plan skip the question. Without a
// terminal, create needs no answer; changes that disrupt more than a reload need --yes. If only the
// join fails, the cluster stays built.
func (b *build) run(ctx context.Context, c *clusterv1alpha1.Cluster, spec *clusterv1alpha1.Provision, op *lifecyclev1alpha1.Operation, question string) error {
	progress := newRunProgress(b.err, b.verbose)
	e, err := b.engine(c.Name, progress)
	if err != nil {
		return err
	}
	if b.dryRun {
		if op.Spec.Action == lifecyclev1alpha1.ActionAddNode { // not also those that the file gets later
			return b.show(ctx, b.streams, e, op, spec, "--hosts", strings.Join(op.Spec.NamedHosts(), ","))
		}
		return b.show(ctx, b.streams, e, op, spec)
	}
	// The hub must be reachable before the work begins, because the cluster joins it at the end.
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

// joinHub joins the built cluster c to the hub of the client fleet, with the administrator's
// kubeconfig of c. It waits until the cluster is ready, and prints that. After joinTimeout it
// returns an error.
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
		return fmt.Errorf("wait for cluster %s: %w; the cluster has joined and may still become ready, see %q", c.Name, err, "orrery cluster describe "+c.Name)
	}
	return say(b.out, "cluster %s has joined the hub and is ready\n", c.Name)
}
