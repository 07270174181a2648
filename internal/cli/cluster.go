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

// hubFlags are the flags --kubeconfig and --context of a command, which select the hub that it
// uses.
type hubFlags struct{ kubeconfig, context string }

// add adds the flags to cmd and its subcommands.
func (f *hubFlags) add(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the hub (default: $KUBECONFIG, then the hub's or the demo's data directory on this machine)")
	cmd.PersistentFlags().StringVar(&f.context, "context", "", "context in the kubeconfig (default: hub, where there is one, else the current context)")
}

// findKubeconfig returns the kubeconfig of the hub for a command: path if it is not "", else
// $KUBECONFIG, which may list several paths. Otherwise it is that of the hub or else of the demo in
// the default data directory on this machine. If there is none, the error says how to start a hub.
// Only the files in data directories are checked to exist.
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

// load reads the kubeconfig that the flags select. path is its path, or a list of paths from
// $KUBECONFIG. Its context is --context, or the context named hub if there is one, or the current
// context. A kubeconfig without clusters is an error.
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
		return nil, "", fmt.Errorf("read kubeconfig %s: it has no clusters; name the kubeconfig of a hub with --kubeconfig", path)
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	if f.context == "" && raw.Contexts["hub"] != nil {
		overrides.CurrentContext = "hub"
	}
	return clientcmd.NewNonInteractiveClientConfig(*raw, overrides.CurrentContext, overrides, rules), path, nil
}

// config returns the configuration of a client for the hub, and the path of the kubeconfig that it
// comes from. It sends no request. Requests fail with the errors that telling describes.
func (f *hubFlags) config() (cfg *rest.Config, path string, err error) {
	c, path, err := f.load()
	if err != nil {
		return nil, "", err
	}
	cfg, err = configOf(c, path)
	return cfg, path, err
}

// configOf returns the configuration of a client for the context of c. path is the path of the
// kubeconfig, for errors. Requests are not rate-limited and fail with the errors that telling
// describes. configOf also stops client-go from logging in this process.
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

// client returns a configuration for the hub, and a client with it. It sends no request. Requests
// of both end with ctx, also those for discovery. Requests and watches of the client also end after
// 30 seconds; those of other clients from the configuration do not.
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
	// Watches of other clients from cfg may take longer than a request.
	cfg.Timeout = 0
	return cfg, c, nil
}

// connect returns a configuration and a client of the hub, as client does, and the ID of the hub.
// It requests the ID, which tenants may not read. So connect is for commands of administrators.
func (f *hubFlags) connect(ctx context.Context) (*rest.Config, client.WithWatch, string, error) {
	cfg, c, err := f.client(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	id, err := hubID(ctx, c)
	return cfg, c, id, err
}

// hubID requests the ID by which members know the hub: the UID of the hub's namespace kube-system.
func hubID(ctx context.Context, c client.Client) (string, error) {
	var system corev1.Namespace
	if err := c.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &system); err != nil {
		return "", fmt.Errorf("read the identity of the hub: %w", err)
	}
	return string(system.UID), nil
}

// connectReady waits until the API server of the hub is ready, and returns a client of the hub and
// its ID. It returns an error if ctx ends first, and at once if the API server cannot be reached.
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

// newCluster returns the command "orrery cluster", with its subcommands.
func newCluster(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Join, list and remove clusters; build, change and delete clusters on hosts",
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
		Long: `Join an existing cluster. The command waits until the API server of the cluster is ready, and checks
that the credentials suffice and that the cluster has not joined already. Then it creates an account for
the hub in the cluster, and the Cluster on the hub. If a check fails, nothing is stored.

The account is the ServiceAccount ` + member.AccountNamespace + `/` + member.AccountName + `, bound to cluster-admin. The hub keeps
a token of it, for 30 days or as long as the cluster grants, and renews the token by itself. With
--keep-credentials nothing is created in the cluster, and the hub keeps the credentials of the kubeconfig.

With --pull the hub need not reach the cluster: an agent in the cluster connects to the hub. The command
creates a Cluster and prints a manifest. Apply it in the cluster within 24 hours, as an administrator, or
let --apply-with-kubeconfig apply it at once. A cluster that has joined without an agent keeps its
connection until the agent has connected. The agent runs in the cluster from --agent-image, which
"orrery agent-image" builds, or with --agent-process as a process outside the cluster.`,
		Example: `  orrery cluster join oak --cluster-kubeconfig oak.kubeconfig --region eu-west-1 --labels env=prod
  orrery cluster join oak --pull --agent-image registry.example.com/orrery-agent:v1 | kubectl --context oak apply -f -`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(cmd, pull); err != nil {
				return err
			}
			if pull && keep {
				return usageError{errors.New("--pull: leave --keep-credentials out; the hub gets a token that the agent creates, and no kubeconfig")}
			}
			if pull && (file != "" || o.Context != "") {
				return usageError{errors.New("--pull: leave out --cluster-kubeconfig and --cluster-context; to have the manifest applied in the cluster, use --apply-with-kubeconfig")}
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
				return fmt.Errorf("wait for cluster %s: %w; the cluster has joined and may still become ready, see %q", o.Name, err, "orrery cluster describe "+o.Name)
			}
			return say(s.out, "cluster %s is ready\n", o.Name)
		},
	}
	cmd.Flags().StringVar(&file, "cluster-kubeconfig", "", "kubeconfig file of the cluster to join")
	cmd.Flags().StringVar(&o.Context, "cluster-context", "", "context in that file (default: its current context)")
	cmd.Flags().StringToStringVar(&labels, "labels", nil, "labels of the Cluster, by which policies select it, such as env=prod")
	cmd.Flags().BoolVar(&keep, "keep-credentials", false, "let the hub keep the credentials of the kubeconfig, and create no account in the cluster")
	cmd.Flags().StringVar(&o.Provider, "provider", "", "the company or team that runs the cluster")
	cmd.Flags().StringVar(&o.Region, "region", "", "region of the cluster")
	cmd.Flags().StringSliceVar(&o.Zones, "zones", nil, "zones of the cluster's nodes")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until the cluster is ready")
	cmd.Flags().BoolVar(&pull, "pull", false, "print a manifest for an agent in the cluster, which connects to the hub")
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
		Long: `Remove a cluster from the fleet. The workloads that Orrery placed there keep running, without Orrery's
labels and annotations; with --delete-workloads they are deleted. The hub's account in the cluster, if
join created one, is removed last. The namespace ` + member.AccountNamespace + ` stays.`,
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
				return fmt.Errorf("wait until cluster %s has left: %w; the cluster continues to leave, see %q", args[0], err, "orrery cluster describe "+args[0])
			}
			return say(s.out, "cluster %s has left the fleet\n%s", args[0], neutral.Trusted(afterwards(last)))
		},
	}
	cmd.Flags().BoolVar(&deleteWorkloads, "delete-workloads", false, "also delete the workloads that Orrery placed in the cluster")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// afterwards returns the text for the user about what stays in a cluster that has left the fleet,
// and what happens with that at a new join. It ends with a line break. last is the Cluster as it
// was last read. If last is nil or has no such condition, the text is "".
func afterwards(last *clusterv1alpha1.Cluster) string {
	var left *metav1.Condition
	if last != nil {
		left = meta.FindStatusCondition(last.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft)
	}
	switch {
	case left == nil:
		return ""
	case left.Reason == clusterv1alpha1.ReasonMarksLeft:
		return "The cluster could not be reached: the workloads keep running there, with Orrery's labels and annotations.\n" +
			"If it joins this hub again, Orrery takes over the workloads that policies still place there; \"orrery cluster orphans\" lists the rest.\n" +
			"If the hub has an account in the cluster, it stays, too: remove it there with \"kubectl delete clusterrolebinding " + member.AccountBinding + "\".\n"
	case left.Reason == clusterv1alpha1.ReasonOrphaned:
		return "The workloads keep running there. If the cluster joins this hub again, Orrery takes over those that policies still place there.\n"
	default:
		return "The workloads that Orrery had placed there were deleted.\n"
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
		Short: "Show a cluster: its conditions, the objects placed there, and the kinds mirrored from it",
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
					err = say(w, "unknown: %s\n", neutral.Indented(explained(ctx, refused)))
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
				if err := say(w, "\nMIRROR\nunknown: %s\n", neutral.Indented(explained(ctx, unknown))); err != nil {
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

// describe prints the fields of a Cluster and its conditions as tables, for "orrery cluster
// describe". It hides passwords in addresses.
func describe(w io.Writer, c *clusterv1alpha1.Cluster) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name string, values ...string) {
		if value := strings.Join(values, ", "); value != "" {
			_ = say(t, "%s:\t%s\n", name, value) // Flush returns the error
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
	_ = say(t, "\nCONDITION\tSTATUS\tREASON\tSINCE\tMESSAGE\n") // Flush returns the error
	for _, cond := range c.Status.Conditions {
		// Flush returns the error.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\n", cond.Type, cond.Status, cond.Reason,
			duration.HumanDuration(time.Since(cond.LastTransitionTime.Time)), cond.Message)
	}
	return t.Flush()
}

// describeAgent adds rows to the output of describe for a cluster whose agent connects to the hub.
// They show the rights that the agent gives the hub, its connection and its certificate. For other
// clusters it adds none.
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

// certificates returns a text that says until when a certificate is valid, or since when it has
// expired. end is its expiry; the text has it in UTC.
func certificates(end, now time.Time) string {
	at := end.UTC().Format(time.RFC3339)
	if now.Before(end) {
		return fmt.Sprintf("valid until %s, for %s", at, duration.HumanDuration(end.Sub(now)))
	}
	return "expired since " + at
}

// say prints text for a person, formatted as by fmt.Fprintf. format is printed unchanged. Each
// argument becomes one line of at most 4 KiB without control characters. So data of a member cannot
// imitate a line or a cell. Arguments of the type neutral.Trusted are printed as they are.
func say(w io.Writer, format string, args ...any) error { return neutral.Fprintf(w, format, args...) }
