package cli

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/content"
)

// environment is the environment of an engine that works with files on this machine: the file of
// the cluster has the credentials, and the result is a kubeconfig file.
type environment struct {
	lifecycle.Files

	cluster  string
	source   string            // replaces the source in the file of the cluster; may be empty
	cache    string            // directory for release files
	agents   map[string]string // paths from --agent, by architecture
	progress *runProgress
}

// Record implements lifecycle.Store. A record is displayed only after it is stored, so that the
// display is never ahead of the state for a resumed run.
func (e environment) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	err := e.Files.Record(ctx, op)
	e.progress.record(op)
	return err
}

// Source implements lifecycle.Environment.
func (e environment) Source(base string) *catalog.Source {
	return &catalog.Source{Base: cmp.Or(e.source, base), Dir: e.cache}
}

// Agent implements lifecycle.Environment.
func (e environment) Agent(arch string) (string, error) {
	if path := e.agents[arch]; path != "" {
		return path, nil
	}
	path, err := content.AgentFile(arch)
	if err != nil {
		return "", fmt.Errorf("%w, or make one with %q and name it with --agent",
			err, "CGO_ENABLED=0 GOOS=linux GOARCH="+arch+" go build -o orrery-agent-linux-"+arch+" ./cmd/orrery-agent")
	}
	return path, nil
}

// Fetch implements lifecycle.Environment.
func (environment) Fetch(ctx context.Context, url string) ([]byte, error) {
	fetched, err := content.Fetch(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file of this machine instead, if it has no access to the network", err)
	}
	return fetched, nil
}

// Progress implements lifecycle.Environment.
func (e environment) Progress(_ lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord) {
	e.progress.step(step)
}

// Built implements lifecycle.Environment.
func (e environment) Built(_ context.Context, kubeconfig []byte, _ clusterv1alpha1.SyncMode, _ func(context.Context) (*rest.Config, error)) error {
	_, err := e.SaveKubeconfig(e.cluster, kubeconfig)
	return err
}
