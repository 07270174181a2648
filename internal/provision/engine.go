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

// environment is the lifecycle.Environment of the hub, which the engine uses for the runs of one
// cluster. Credentials come only from Secrets. A built cluster joins the hub.
type environment struct {
	reportingStore
	credentials

	hub *Provisioner
}

// Source implements lifecycle.Environment. It returns the source of release files, with the cache
// of the hub. base is the URL of a mirror; "" means upstream.
func (e environment) Source(base string) *catalog.Source {
	return &catalog.Source{Base: base, Dir: e.hub.options.Cache}
}

// Agent implements lifecycle.Environment. It returns the path of the agent's program for an
// architecture, such as amd64.
func (environment) Agent(arch string) (string, error) { return content.AgentFile(arch) }

// Fetch implements lifecycle.Environment. It reads a manifest or chart from a URL.
func (environment) Fetch(ctx context.Context, url string) ([]byte, error) {
	return content.Fetch(ctx, url)
}

// Progress implements lifecycle.Environment. It counts a step that has ended in the metrics.
func (environment) Progress(op lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord) {
	metrics.step(op, step)
}

// Built implements lifecycle.Environment. It lets a built cluster join the hub. If join is Pull,
// the cluster joins by agent, see builtByAgent. Else the hub joins it with the kubeconfig, which
// also renews the hub's credentials for a cluster that has joined.
func (e environment) Built(ctx context.Context, kubeconfig []byte, join clusterv1alpha1.SyncMode, api func(context.Context) (*rest.Config, error)) error {
	if join == clusterv1alpha1.Pull {
		return joinError(e.hub.builtByAgent(ctx, e.cluster, api))
	}
	return e.hub.built(ctx, e.cluster, kubeconfig)
}

// engine returns the engine that runs the Operations of a cluster, as the default of
// Options.Engine. It connects to hosts over SSH and accepts only the host keys in Secrets. env
// provides the state, credentials and files. p.catalog must be set.
func (p *Provisioner) engine(cluster string, env lifecycle.Environment) Runner {
	return &lifecycle.Engine{
		Cluster: cluster, Env: env, Dialer: &host.SSH{HostKeys: host.Pinned}, Catalog: p.catalog, Holder: "hub " + p.store.Holder, Clock: p.options.Clock,
	}
}
