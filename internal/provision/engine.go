package provision

import (
	"context"

	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/content"
	"orrery.dev/orrery/internal/lifecycle/host"
)

// environment is the lifecycle.Environment of the hub. Credentials come only from Secrets, and a
// built cluster joins the hub.
type environment struct {
	told
	credentials

	hub *Provisioner
}

// Source implements lifecycle.Environment.
func (e environment) Source(base string) *catalog.Source {
	return &catalog.Source{Base: base, Dir: e.hub.options.Cache}
}

// Agent implements lifecycle.Environment.
func (environment) Agent(arch string) (string, error) { return content.AgentFile(arch) }

// Fetch implements lifecycle.Environment.
func (environment) Fetch(ctx context.Context, url string) ([]byte, error) {
	return content.Fetch(ctx, url)
}

// Progress implements lifecycle.Environment.
func (environment) Progress(op lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord) {
	metrics.step(op, step)
}

// Built implements lifecycle.Environment.
func (e environment) Built(ctx context.Context, kubeconfig []byte, join clusterv1alpha1.SyncMode, api func(context.Context) (*rest.Config, error)) error {
	if join == clusterv1alpha1.Pull {
		return joinError(e.hub.builtByAgent(ctx, e.cluster, api))
	}
	return e.hub.built(ctx, e.cluster, kubeconfig)
}

// engine returns the engine of a cluster. It connects over SSH with pinned host keys.
func (p *Provisioner) engine(cluster string, env lifecycle.Environment) Runner {
	return &lifecycle.Engine{
		Cluster: cluster, Env: env, Dialer: &host.SSH{HostKeys: host.Pinned}, Catalog: p.catalog, Holder: "hub " + p.store.Holder, Clock: p.options.Clock,
	}
}
