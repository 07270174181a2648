package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/enrollment"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
	agentmanifest "orrery.dev/orrery/internal/tunnel/manifest"
)

// enrolledLook is the interval between two checks whether the agent of a cluster has enrolled:
// whether it has exchanged its token for a certificate. It is 200 ms.
const enrolledLook = 200 * time.Millisecond

// pullFlags are the flags of "orrery cluster join --pull" and "rejoin". They say how the agent runs
// that connects the cluster to the hub, and which rights it gives the hub.
type pullFlags struct {
	image, proxy                  string
	process                       bool
	profile                       string
	namespaces                    []string
	applyKubeconfig, applyContext string
	replace                       bool
}

// addAgent adds the flags that join --pull and rejoin have in common.
func (p *pullFlags) addAgent(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&p.image, "agent-image", "", "image of the agent, from a registry that the cluster reaches; \"orrery agent-image\" makes it")
	fs.BoolVar(&p.process, "agent-process", false, "the agent runs outside of the cluster, as orrery-agent cluster --kubeconfig FILE: the manifest has no Deployment")
	fs.StringVar(&p.proxy, "agent-proxy", "", "URL of the proxy by which the agent in the cluster reaches the hub (an agent-process has HTTPS_PROXY)")
	fs.StringVar(&p.applyKubeconfig, "apply-with-kubeconfig", "", "apply the manifest with this kubeconfig of the cluster, and wait for the agent; it is not kept")
	fs.StringVar(&p.applyContext, "apply-context", "", "context in that file (default: its current context)")
}

// add adds all flags of join --pull.
func (p *pullFlags) add(cmd *cobra.Command) {
	p.addAgent(cmd)
	cmd.Flags().StringVar(&p.profile, "profile", "", "with --pull, what the hub may do in the cluster: "+strings.Join(agentmanifest.Profiles(), ", ")+" (default: All)")
	cmd.Flags().StringSliceVar(&p.namespaces, "profile-namespaces", nil, "with --profile Placement, the namespaces in which workloads may be placed")
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(agentmanifest.Profiles(), cobra.ShellCompDirectiveNoFileComp))
}

// check returns a usageError for flags that are invalid or exclude each other. pull is false for a
// join without --pull, where every flag about an agent is an error.
func (p *pullFlags) check(cmd *cobra.Command, pull bool) error {
	if !pull {
		for _, name := range []string{
			"agent-image", "agent-process", "agent-proxy", "apply-with-kubeconfig", "apply-context", "profile", "profile-namespaces",
		} {
			if cmd.Flags().Changed(name) {
				return usageError{fmt.Errorf("--%s is for clusters that dial the hub: it needs --pull", name)}
			}
		}
		return nil
	}
	switch {
	case p.image == "" && !p.process:
		return usageError{errors.New("--agent-image is required, since there is no registry to get it from: make the image with \"orrery agent-image\", or use --agent-process")}
	case p.image != "" && p.process:
		return usageError{errors.New("--agent-image, --agent-process: the agent runs in one way")}
	case p.proxy != "" && p.process:
		return usageError{errors.New("--agent-proxy: start the process with HTTPS_PROXY instead")}
	case p.profile != "" && !slices.Contains(agentmanifest.Profiles(), p.profile):
		return usageError{fmt.Errorf("--profile %q: want one of %s", p.profile, strings.Join(agentmanifest.Profiles(), ", "))}
	case (p.profile == string(clusterv1alpha1.AgentProfilePlacement)) != (len(p.namespaces) > 0):
		return usageError{errors.New("--profile-namespaces: name the namespaces of --profile Placement, and of no other")}
	case p.applyContext != "" && p.applyKubeconfig == "":
		return usageError{errors.New("--apply-context is a context of --apply-with-kubeconfig")}
	}
	if p.proxy != "" {
		if u, err := url.Parse(p.proxy); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			// The error does not show the URL, which may have a password.
			return usageError{errors.New("--agent-proxy: want a URL such as http://proxy.example.com:3128")}
		}
	}
	return nil
}

// agent returns spec.agent for the Cluster: the rights that the agent gives the hub. Without
// --profile it is nil: a new Cluster then gives all rights, and an existing one keeps its own.
func (p *pullFlags) agent() *clusterv1alpha1.Agent {
	if p.profile == "" {
		return nil
	}
	return &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfile(p.profile), Namespaces: p.namespaces}
}

// expect creates the Cluster for a cluster whose agent will join. If the Cluster exists, expect
// updates its labels, provider, region and zones, and also spec.agent if a is not nil. The hub then
// uses its present connection to the cluster until the agent has enrolled.
func expect(ctx context.Context, hub client.Client, o member.JoinOptions, a *clusterv1alpha1.Agent) error {
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: o.Labels},
		Spec:       clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull, Agent: a, Provider: o.Provider, Region: o.Region, Zones: o.Zones},
	}
	err := hub.Create(ctx, cluster)
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			return fmt.Errorf("create cluster %s: %w", o.Name, err)
		}
		return nil
	}
	known := &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: o.Name}, known); err != nil {
		return fmt.Errorf("get cluster %s: %w", o.Name, err)
	}
	updated := known.DeepCopy()
	member.Describe(updated, cluster)
	if a != nil {
		updated.Spec.Agent = a
	}
	if err := hub.Patch(ctx, updated, client.MergeFrom(known)); err != nil {
		return fmt.Errorf("update cluster %s: %w", o.Name, err)
	}
	return nil
}

// join creates or updates the Cluster of a cluster whose agent will connect to the hub. Then it
// prints the manifest for the cluster, or applies it and waits, as hand does. All of that ends
// after timeout. If the hub accepts no agents, or --apply-with-kubeconfig is invalid, join returns
// an error and creates nothing.
func (p *pullFlags) join(ctx context.Context, s streams, f *hubFlags, o member.JoinOptions, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, _, err := f.connectReady(ctx)
	if err != nil {
		return err
	}
	// hand makes these checks, too. They come before the Cluster is created, so that a refused join
	// leaves nothing.
	if _, _, _, err := enrollment.Published(ctx, c); err != nil {
		return err
	}
	if _, err := p.target(); err != nil {
		return err
	}
	if err := expect(ctx, c, o, p.agent()); err != nil {
		return err
	}
	return p.hand(ctx, s, c, o.Name)
}

// hand creates a token with which the agent of an existing Cluster enrols, and a manifest with that
// token. It prints the manifest to s.out. With --apply-with-kubeconfig it applies the manifest and
// waits until the Cluster is ready. With p.replace it revokes the present key of the cluster's
// agents at once.
func (p *pullFlags) hand(ctx context.Context, s streams, hub client.WithWatch, name string) error {
	var cluster clusterv1alpha1.Cluster
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, &cluster); err != nil {
		return err
	}
	listener, ca, key, err := enrollment.Published(ctx, hub)
	if err != nil {
		return err
	}
	if enrollment.OnlyLocal(listener) {
		err := say(s.err, "agents are to reach the hub at %s, which is this machine alone: for clusters elsewhere start orrery server with --public-address and --public-url\n", listener)
		if err != nil {
			return err
		}
	}
	target, err := p.target() // before the key of the agents is revoked
	if err != nil {
		return err
	}
	newToken := enrollment.NewToken
	if p.replace {
		newToken = enrollment.Replace
	}
	token, expires, err := newToken(ctx, hub, name)
	if err != nil {
		return err
	}
	objects, err := agentmanifest.Objects(agentmanifest.Options{
		Cluster: name, URL: listener, CA: ca, Key: key, Token: token, Replace: p.replace, Proxy: p.proxy, Agent: cluster.Spec.Agent, Image: p.image,
	})
	if err != nil {
		return err
	}
	if target != nil {
		return apply(ctx, s, hub, target, name, token, objects)
	}
	text, err := agentmanifest.YAML(objects)
	if err != nil {
		return err
	}
	if _, err := exact(s.out).Write(text); err != nil {
		return err
	}
	next := ""
	if p.process {
		next = "; then start, where the cluster is reached, orrery-agent cluster --kubeconfig FILE"
	}
	return say(s.err, "the manifest on standard output is for cluster %s: apply it there as its administrator until %s, with kubectl apply -f -%s. It has a token: let nobody else see it.\n",
		name, expires.UTC().Format(time.RFC3339), next)
}

// target returns a client of the cluster in which the manifest is applied. It is nil without
// --apply-with-kubeconfig: the manifest is then printed. target sends no request.
func (p *pullFlags) target() (*manifest.Client, error) {
	if p.applyKubeconfig == "" {
		return nil, nil //nolint:nilnil // documented
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: p.applyKubeconfig}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: p.applyContext}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read --apply-with-kubeconfig: %w", err)
	}
	cfg.QPS = -1
	c, err := manifest.NewClient(cfg, manifest.Options{FieldManager: agent.Name, Timeout: 30 * time.Second})
	return &c, err
}

// apply applies the objects of a manifest in the cluster of c. It waits until the agent there has
// enrolled with the token, and until the Cluster is ready on the hub. If ctx ends first, the error
// says so, and the agent continues to try.
func apply(ctx context.Context, s streams, hub client.WithWatch, c *manifest.Client, name, token string, objects []*unstructured.Unstructured) error {
	if err := c.ApplyAll(ctx, objects); err != nil {
		return fmt.Errorf("cluster %s: %w", name, err)
	}
	if err := say(s.err, "the manifest is applied; waiting for the agent of cluster %s\n", name); err != nil {
		return err
	}
	kept := manifest.Object{Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Namespace: tunnel.Namespace, Name: agent.Name}
	err := wait.PollUntilContextCancel(ctx, enrolledLook, true, func(ctx context.Context) (bool, error) {
		found, err := c.Get(ctx, kept)
		if err != nil {
			return false, client.IgnoreNotFound(err)
		}
		var secret corev1.Secret
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &secret); err != nil {
			return false, fmt.Errorf("read %s: %w", kept, err)
		}
		return agent.Enrolled(secret.Data, token), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the agent of cluster %s to enrol: %w; it goes on trying: see why in its log, with kubectl -n %s logs deployment/%s", name, err, tunnel.Namespace, agent.Name)
	}
	if _, err := member.WaitReady(ctx, hub, name); err != nil {
		return fmt.Errorf("%w; the cluster has joined and may still become ready, see %q", err, "orrery cluster describe "+name)
	}
	return say(s.out, "cluster %s is ready\n", name)
}

func newRejoin(s streams, f *hubFlags) *cobra.Command {
	var (
		p       pullFlags
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "rejoin NAME",
		Short: "Enrol the agent of a cluster again, with a new token and the rights in the Cluster",
		Long: `Have the agent of a cluster enrol again, and print the manifest for that: after its certificate
has ended, or spec.agent of the Cluster or the hub's address has changed. The agents keep their
key, no other key can redeem the token, and the cluster stays connected.

With --replace the hub revokes the agents' key at once: after somebody may have seen the key, or
it was lost with Secret orrery-system/orrery-agent of the cluster. The hub does not reach the
cluster until the manifest is applied, and the first that redeems the token becomes the cluster's
agent. Workloads keep running.`,
		Example:           `  orrery cluster rejoin oak --agent-image registry.example.com/orrery-agent:v2 | kubectl --context oak apply -f -`,
		Args:              oneName,
		ValidArgsFunction: f.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(cmd, true); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			_, c, err := f.client(ctx)
			if err != nil {
				return err
			}
			var cluster clusterv1alpha1.Cluster
			if err := c.Get(ctx, client.ObjectKey{Name: args[0]}, &cluster); err != nil {
				return fmt.Errorf("get cluster %s: %w", args[0], err)
			}
			if cluster.Spec.SyncMode != clusterv1alpha1.Pull {
				return fmt.Errorf("cluster %s has no agent, the hub dials it itself; to change that run %q", args[0], "orrery cluster join "+args[0]+" --pull")
			}
			return p.hand(ctx, s, c, args[0])
		},
	}
	p.addAgent(cmd)
	cmd.Flags().BoolVar(&p.replace, "replace", false, "revoke the key of the cluster's agents at once, and have them make another: after it was seen or lost")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the cluster in all")
	return cmd
}
