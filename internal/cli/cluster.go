package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/demo"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/neutral"
)

// hubFlags select the hub of a command.
type hubFlags struct{ kubeconfig, context string }

func (f *hubFlags) add(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the hub (default: $KUBECONFIG, then the hub's or the demo's data directory on this machine)")
	cmd.PersistentFlags().StringVar(&f.context, "context", "", "context in the kubeconfig (default: hub, where there is one, else the current context)")
}

// findKubeconfig returns the path of the kubeconfig of the hub on this machine, or path if it is
// not "".
func findKubeconfig(path string) (string, error) {
	if path != "" {
		return path, nil
	}
	if path = os.Getenv("KUBECONFIG"); path != "" {
		return path, nil
	}
	candidates := []string{
		filepath.Join(hub.DefaultDataDir(), "kubeconfig"),
		filepath.Join(demo.DefaultDataDir(), "kubeconfig"),
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find a hub: neither --kubeconfig nor KUBECONFIG is set, and there is no %s; start one with %q or %q",
		strings.Join(candidates, " and no "), "orrery server", "orrery demo up")
}

// load reads the kubeconfig of the hub, and returns its path.
func (f *hubFlags) load() (c clientcmd.ClientConfig, path string, err error) {
	if path, err = findKubeconfig(f.kubeconfig); err != nil {
		return nil, "", err
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(path)}
	if len(rules.Precedence) == 1 {
		// With several files some may be missing, as in kubectl. A single file must exist.
		if _, err := os.Stat(path); err != nil {
			return nil, "", fmt.Errorf("read kubeconfig: %w", err)
		}
	}
	raw, err := rules.Load()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	if len(raw.Clusters) == 0 {
		return nil, "", fmt.Errorf("read kubeconfig %s: it has no cluster", path)
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	if f.context == "" && raw.Contexts["hub"] != nil {
		overrides.CurrentContext = "hub"
	}
	return clientcmd.NewNonInteractiveClientConfig(*raw, overrides.CurrentContext, overrides, rules), path, nil
}

// config returns the configuration for the hub, and the path of its kubeconfig.
func (f *hubFlags) config() (cfg *rest.Config, path string, err error) {
	c, path, err := f.load()
	if err != nil {
		return nil, "", err
	}
	cfg, err = configOf(c, path)
	return cfg, path, err
}

// configOf returns the configuration for the hub from the kubeconfig at a path.
func configOf(c clientcmd.ClientConfig, path string) (*rest.Config, error) {
	quiet()
	cfg, err := c.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	cfg.QPS = -1
	cfg.Wrap(telling(hubRoot(cfg.Host), path))
	return cfg, nil
}

// client returns access to the hub and requires no rights. Requests end with ctx, also those for
// the discovery of types.
func (f *hubFlags) client(ctx context.Context) (*rest.Config, client.WithWatch, error) {
	cfg, path, err := f.config()
	if err != nil {
		return nil, nil, err
	}
	cfg.Timeout = 30 * time.Second
	cfg.Wrap(until(ctx))
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return nil, nil, fmt.Errorf("reach the hub at %s (from %s): %w", cfg.Host, path, err)
	}
	// Watches of a command may take longer than a request.
	cfg.Timeout = 0
	return cfg, c, nil
}

// connect returns access to the hub and its ID. A tenant may not read the ID, so this is for
// commands of administrators.
func (f *hubFlags) connect(ctx context.Context) (*rest.Config, client.WithWatch, string, error) {
	cfg, c, err := f.client(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	id, err := hubID(ctx, c)
	return cfg, c, id, err
}

// hubID returns the ID of the hub in its members: the UID of its namespace kube-system.
func hubID(ctx context.Context, c client.Client) (string, error) {
	var system corev1.Namespace
	if err := c.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &system); err != nil {
		return "", fmt.Errorf("ask the hub who it is: %w", err)
	}
	return string(system.UID), nil
}

// connectReady waits until the API server of the hub is ready, and returns a client of the hub
// and its ID.
func (f *hubFlags) connectReady(ctx context.Context) (client.WithWatch, string, error) {
	cfg, _, err := f.config()
	if err != nil {
		return nil, "", err
	}
	if err := member.WaitHubReady(ctx, cfg); err != nil {
		return nil, "", err
	}
	_, c, id, err := f.connect(ctx)
	return c, id, err
}

func newCluster(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Join, list and remove clusters; build them on hosts, change and undo them",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var f hubFlags
	f.add(cmd)
	cmd.AddCommand(
		newJoin(s, &f), newRejoin(s, &f), newUnjoin(s, &f), newList(s, &f), newDescribe(s, &f), newOrphans(s, &f),
		newConfig(s), newPreflight(s), newPlan(s),
		newCreate(s, &f), newApply(s, &f), newRollback(s), newAddNode(s, &f), newDeleteNode(s), newDelete(s), newClusterKubeconfig(s), newCerts(s),
	)
	return cmd
}

func newJoin(s streams, f *hubFlags) *cobra.Command {
	var (
		o       member.JoinOptions
		file    string
		labels  map[string]string
		keep    bool
		timeout time.Duration
		pull    bool
		p       pullFlags
	)
	cmd := &cobra.Command{
		Use:   "join NAME --cluster-kubeconfig FILE | --pull",
		Short: "Join an existing cluster",
		Long: `Join an existing cluster: wait until its API server is ready, check that the credentials
suffice and that it is not joined already; then give the hub an account of its own there and create the
Cluster. The account is the ServiceAccount ` + member.AccountNamespace + `/` + member.AccountName + `, bound to cluster-admin; the hub keeps
a token of it, for 30 days or what the cluster grants, and renews that by itself.
With --keep-credentials nothing is created in the cluster, and the hub keeps the
kubeconfig's credentials. When a check fails nothing is stored.

With --pull the hub need not reach the cluster: an agent there dials the hub. A Cluster is
created, and a manifest printed, which somebody applies in the cluster within 24 hours as its
administrator; --apply-with-kubeconfig applies it at once. A cluster that is joined without an
agent stays so until the agent has come. The agent runs from --agent-image, which "orrery
agent-image" makes, or with --agent-process as a process outside of the cluster.`,
		Example: `  orrery cluster join oak --cluster-kubeconfig oak.kubeconfig --region eu-west-1 --labels env=prod
  orrery cluster join oak --pull --agent-image registry.example.com/orrery-agent:v1 | kubectl --context oak apply -f -`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(cmd, pull); err != nil {
				return err
			}
			if pull && keep {
				return usageError{errors.New("--pull: the hub gets the token that the agent makes; --keep-credentials is for a kubeconfig")}
			}
			if pull && (file != "" || o.Context != "") {
				return usageError{errors.New("--pull: the hub keeps no kubeconfig of a cluster whose agent dials in; to have the manifest applied, use --apply-with-kubeconfig")}
			}
			if pull {
				o.Name, o.Labels = args[0], labels
				return p.join(cmd.Context(), s, f, o, timeout)
			}
			if file == "" {
				return usageError{errors.New("--cluster-kubeconfig is required: the kubeconfig file of the cluster to join")}
			}
			kubeconfig, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read --cluster-kubeconfig: %w", err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			c, id, err := f.connectReady(ctx)
			if err != nil {
				return err
			}
			o.Name, o.Kubeconfig, o.KubeconfigDir, o.HubID, o.Labels, o.Account = args[0], kubeconfig, filepath.Dir(file), id, labels, !keep
			r, err := member.Join(ctx, c, o)
			if err != nil {
				return fmt.Errorf("join cluster %s: %w", o.Name, err)
			}
			if err := say(s.err, "cluster %s (%s) is joined; waiting until it is ready\n", o.Name, r.Version); err != nil {
				return err
			}
			if _, err := member.WaitReady(ctx, c, o.Name); err != nil {
				return fmt.Errorf("wait for cluster %s: %w; it stays joined, see %q", o.Name, err, "orrery cluster describe "+o.Name)
			}
			return say(s.out, "cluster %s is ready\n", o.Name)
		},
	}
	cmd.Flags().StringVar(&file, "cluster-kubeconfig", "", "kubeconfig file of the cluster to join")
	cmd.Flags().StringVar(&o.Context, "cluster-context", "", "context in that file (default: its current context)")
	cmd.Flags().StringToStringVar(&labels, "labels", nil, "labels of the Cluster, by which policies select it, such as env=prod")
	cmd.Flags().BoolVar(&keep, "keep-credentials", false, "have the hub keep the kubeconfig's credentials, and make no account for it in the cluster")
	cmd.Flags().StringVar(&o.Provider, "provider", "", "who runs the cluster")
	cmd.Flags().StringVar(&o.Region, "region", "", "region of the cluster")
	cmd.Flags().StringSliceVar(&o.Zones, "zones", nil, "zones of the cluster's nodes")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the cluster in all")
	cmd.Flags().BoolVar(&pull, "pull", false, "have an agent in the cluster dial the hub, and print the manifest for it")
	p.add(cmd)
	return cmd
}

func newUnjoin(s streams, f *hubFlags) *cobra.Command {
	var (
		deleteWorkloads bool
		timeout         time.Duration
	)
	cmd := &cobra.Command{
		Use:   "unjoin NAME",
		Short: "Remove a cluster from the fleet; its workloads keep running",
		Long: `Remove a cluster from the fleet. What Orrery placed there keeps running and loses only
our marks, unless --delete-workloads asks for its deletion. The hub's account there, if
join made one, is removed last; the namespace ` + member.AccountNamespace + ` stays.`,
		Args:              oneName,
		ValidArgsFunction: f.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			_, c, err := f.client(ctx)
			if err != nil {
				return err
			}
			if err := member.Unjoin(ctx, c, args[0], deleteWorkloads); err != nil {
				return fmt.Errorf("unjoin cluster %s: %w", args[0], err)
			}
			last, err := member.WaitGone(ctx, c, args[0])
			if err != nil {
				return fmt.Errorf("wait until cluster %s has left: %w; it goes on leaving, see %q", args[0], err, "orrery cluster describe "+args[0])
			}
			return say(s.out, "cluster %s has left the fleet\n%s", args[0], neutral.Trusted(afterwards(last)))
		},
	}
	cmd.Flags().BoolVar(&deleteWorkloads, "delete-workloads", false, "also delete what Orrery placed in the cluster")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// afterwards returns the text about what stays in a cluster that was unjoined, and what happens
// to it when the cluster joins again. last is the last state of the Cluster; nil: unknown.
func afterwards(last *clusterv1alpha1.Cluster) string {
	var left *metav1.Condition
	if last != nil {
		left = meta.FindStatusCondition(last.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
	}
	switch {
	case left == nil:
		return ""
	case left.Reason == clusterv1alpha1.ReasonMarksLeft:
		return "It could not be reached: the workloads keep running there, and our labels and annotations stay on them.\n" +
			"When it joins this hub again, what is still placed there is taken up as it is, and \"orrery cluster orphans\" lists the rest.\n" +
			"The hub's account, if it has one there, stays, too: \"kubectl delete clusterrolebinding " + member.AccountBinding + "\" in the cluster removes it.\n"
	case left.Reason == clusterv1alpha1.ReasonOrphaned:
		return "The workloads keep running there. When it joins this hub again, what is still placed there is taken up as it is.\n"
	default:
		return "What Orrery had placed there was deleted.\n"
	}
}

func newList(s streams, f *hubFlags) *cobra.Command {
	var (
		output    string
		noHeaders bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the clusters",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			return printList(cmd.Context(), s, cfg, clusterv1alpha1.GroupVersion.WithResource("clusters"), output, noHeaders)
		},
	}
	addOutput(cmd, &output, outputName)
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "print the table without its first line")
	return cmd
}

func newDescribe(s streams, f *hubFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show a cluster, its conditions, what is placed there and what is mirrored of it",
		Args:  oneName,

		ValidArgsFunction: f.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			cfg, c, err := f.client(ctx)
			if err != nil {
				return err
			}
			var cluster clusterv1alpha1.Cluster
			if err := c.Get(ctx, types.NamespacedName{Name: args[0]}, &cluster); err != nil {
				return fmt.Errorf("get cluster %s: %w", args[0], err)
			}
			cluster.ManagedFields = nil
			return printValue(s.out, output, &cluster, func(w io.Writer) error {
				if err := describe(w, &cluster); err != nil {
					return err
				}
				if err := say(w, "\nPLACED HERE\n"); err != nil {
					return err
				}
				// A refusal is printed in place of the data that the caller may not see. The
				// rest is printed.
				placed, refused := placements(ctx, c, args[0])
				switch {
				case apierrors.IsForbidden(refused):
					err = say(w, "not known: %s\n", neutral.Indented(explained(ctx, refused)))
				case refused != nil:
					return refused
				default:
					err = printPlacements(w, placed)
				}
				if err != nil {
					return err
				}
				mirror, unknown := clusterMirror(ctx, cfg, args[0])
				if unknown == nil {
					return errors.Join(refused, describeMirror(w, mirror))
				}
				if err := say(w, "\nMIRROR\nnot known: %s\n", neutral.Indented(explained(ctx, unknown))); err != nil {
					return err
				}
				if !apierrors.IsForbidden(unknown) {
					return refused
				}
				return errors.Join(refused, unknown)
			})
		},
	}
	addOutput(cmd, &output)
	return cmd
}

func describe(w io.Writer, c *clusterv1alpha1.Cluster) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name string, values ...string) {
		if value := strings.Join(values, ", "); value != "" {
			_ = say(t, "%s:\t%s\n", name, value) // Flush reports it
		}
	}
	row("Name", c.Name)
	labels := make([]string, 0, len(c.Labels))
	for k, v := range c.Labels {
		labels = append(labels, k+"="+v)
	}
	slices.Sort(labels)
	row("Labels", labels...)
	row("Endpoint", member.Redacted(c.Spec.APIEndpoint))
	row("Provider", c.Spec.Provider)
	row("Region", c.Spec.Region)
	row("Zones", c.Spec.Zones...)
	for _, taint := range c.Spec.Taints {
		row("Taint", taint.ToString())
	}
	row("Version", c.Status.KubernetesVersion)
	row("ID", c.Status.ID)
	if a := c.Status.APIs; a != nil {
		row("APIs", fmt.Sprintf("%d types (%s)", a.Count, a.Completeness))
	}
	if n := c.Status.NodeSummary; n != nil {
		row("Nodes", fmt.Sprintf("%d of %d ready", n.Ready, n.Total))
	}
	if r := c.Status.ResourceSummary; r != nil {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
			row(strings.ToUpper(string(name[:1]))+string(name[1:]), fmt.Sprintf("%s of %s allocated",
				r.Allocated.Name(name, "").String(), r.Allocatable.Name(name, "").String()))
		}
	}
	if p := c.Status.Provision; p != nil && p.CertificatesExpire != nil {
		row("Certificates", certificates(p.CertificatesExpire.Time, time.Now()))
	}
	describeAgent(row, c, time.Now())
	row("Age", duration.HumanDuration(time.Since(c.CreationTimestamp.Time)))
	_ = say(t, "\nCONDITION\tSTATUS\tREASON\tSINCE\tMESSAGE\n") // Flush reports it
	for _, cond := range c.Status.Conditions {
		// Flush reports it.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\n", cond.Type, cond.Status, cond.Reason,
			duration.HumanDuration(time.Since(cond.LastTransitionTime.Time)), cond.Message)
	}
	return t.Flush()
}

// describeAgent adds rows about the state of the agent, for a cluster that dials in, and about
// the rights of the hub.
func describeAgent(row func(name string, values ...string), c *clusterv1alpha1.Cluster, now time.Time) {
	if c.Spec.SyncMode != clusterv1alpha1.Pull {
		return
	}
	profile := string(c.Spec.Profile())
	if in := c.Spec.PlacementNamespaces(); len(in) > 0 {
		profile += " in " + strings.Join(in, ", ")
	}
	row("Profile", profile)
	a := c.Status.Agent
	if a == nil || a.Replicas == 0 {
		row("Agent", "not connected")
		return
	}
	agent := fmt.Sprintf("%s from %s, %d connected with %d spares", a.Version, a.Address, a.Replicas, a.Spares)
	if a.ConnectedSince != nil {
		agent += ", since " + duration.HumanDuration(now.Sub(a.ConnectedSince.Time))
	}
	row("Agent", agent)
	if a.CertificateExpires != nil {
		row("Agent's certificate", certificates(a.CertificateExpires.Time, now))
	}
}

// certificates returns the text about when the first certificate of a cluster expires.
func certificates(end, now time.Time) string {
	at := end.UTC().Format(time.RFC3339)
	if now.Before(end) {
		return fmt.Sprintf("valid until %s, for %s", at, duration.HumanDuration(end.Sub(now)))
	}
	return "expired since " + at
}

// say prints text for a person. The arguments are foreign text, unless they are neutral.Trusted:
// no argument can add a line or a cell.
func say(w io.Writer, format string, args ...any) error { return neutral.Fprintf(w, format, args...) }
