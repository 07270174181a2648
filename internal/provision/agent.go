package provision

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/enrollment"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/tunnel/agent"
	agentmanifest "orrery.dev/orrery/internal/tunnel/manifest"
)

// reachable returns an error if agents in a member cluster could not find the hub, so that a
// cluster cannot join by agent. The hub then has published no address for agents, or a loopback
// address. It reads that address from the hub's API server and connects to nothing else.
func (p *Provisioner) reachable(ctx context.Context) error {
	listener, _, _, err := enrollment.Published(ctx, p.store.Client)
	if err != nil {
		return fmt.Errorf("spec.provision.join is Pull: %w", err)
	}
	if enrollment.OnlyLocal(listener) {
		return fmt.Errorf("spec.provision.join is Pull, and agents would look for the hub at %s, which is their own pod: "+
			"start orrery server with --public-address and --public-url", listener)
	}
	return nil
}

// joinedByAgent reports whether the Cluster has joined in the sync mode Pull, in which the hub
// reaches the cluster through its agent.
func joinedByAgent(o *clusterv1alpha1.Cluster) bool {
	return o.Spec.SyncMode == clusterv1alpha1.Pull && o.Spec.SecretRef.Name != ""
}

// builtByAgent lets a built cluster join the hub by agent. api returns a client configuration for
// the API server of the cluster, which connects through a host. builtByAgent creates a new token,
// applies the manifest of the agent, and sets spec.syncMode of the Cluster to Pull. If the hub
// dials the cluster already, it does not set spec.syncMode.
//
// It does not wait for the agent, which starts only when nodes and their network are ready. After
// the agent has joined, it does nothing. Until then each call creates a token and applies the
// manifest again.
func (p *Provisioner) builtByAgent(ctx context.Context, name string, api func(context.Context) (*rest.Config, error)) error {
	hub := p.store.Client
	o := &clusterv1alpha1.Cluster{}
	if err := hub.Get(ctx, client.ObjectKey{Name: name}, o); err != nil {
		return fmt.Errorf("get cluster %s: %w", name, err)
	}
	if joinedByAgent(o) {
		return nil
	}
	if err := p.reachable(ctx); err != nil {
		return err
	}
	listener, ca, key, err := enrollment.Published(ctx, hub)
	if err != nil {
		return err
	}
	cfg, err := api(ctx)
	if err != nil {
		return err
	}
	cluster, err := manifest.NewClient(cfg, manifest.Options{FieldManager: agent.Name, Timeout: checkTimeout})
	if err != nil {
		return err
	}
	// Replace the token of an earlier call: hosts may have been reset since, and their agents may have
	// lost the key.
	token, _, err := enrollment.Replace(ctx, hub, name)
	if err != nil {
		return err
	}
	objects, err := agentmanifest.Objects(agentmanifest.Options{
		Cluster: name, URL: listener, CA: ca, Key: key, Token: token, Replace: true, Agent: o.Spec.Agent, Image: plan.AgentImage,
	})
	if err != nil {
		return err
	}
	if err := cluster.ApplyAll(ctx, objects); err != nil {
		return err
	}
	if o.Spec.APIEndpoint != "" {
		return nil // the hub keeps dialing until it reaches the cluster through the agent
	}
	waits := o.DeepCopy()
	waits.Spec.SyncMode = clusterv1alpha1.Pull
	if err := hub.Patch(ctx, waits, client.MergeFrom(o)); err != nil {
		return fmt.Errorf("update cluster %s: %w", name, err)
	}
	return nil
}
