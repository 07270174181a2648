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

// environment implements lifecycle.Environment for an engine that builds clusters from this
// machine. The cluster's file has the credentials. State and the resulting kubeconfig are files in
// --state-dir.
type environment struct {
	lifecycle.Files

	cluster  string
	source   string            // base URL of --source; "": the one in the cluster's file
	cache    string            // --cache, the directory for release files
	agents   map[string]string // paths of --agent, by architecture
	progress *runProgress
}

// Record implements lifecycle.Store: it stores the state of a run, and then displays it. So the
// display is never ahead of the state from which a run is resumed. If the state cannot be stored,
// it is displayed nevertheless, and the error is returned.
func (e environment) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	err := e.Files.Record(ctx, op)
	e.progress.record(op)
	return err
}

// Source implements lifecycle.Environment: it returns where release files come from. base is the
// URL in the cluster's file; the flag --source has precedence.
func (e environment) Source(base string) *catalog.Source {
	return &catalog.Source{Base: cmp.Or(e.source, base), Dir: e.cache}
}

// Agent implements lifecycle.Environment: it returns the path of the agent's program for hosts of
// an architecture. That is the path from --agent, which is not checked, or else the program beside
// this executable. If there is none, the error has the command that builds it.
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

// Fetch implements lifecycle.Environment: it returns the content at a URL, such as a manifest or a
// chart. An error suggests a file of this machine in its place.
func (environment) Fetch(ctx context.Context, url string) ([]byte, error) {
	fetched, err := content.Fetch(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("%w; if this machine has no access to the network, name a file of this machine instead", err)
	}
	return fetched, nil
}

// Progress implements lifecycle.Environment: it displays a step whose state has changed. A step
// without a host is ignored.
func (e environment) Progress(_ lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord) {
	e.progress.step(step)
}

// Built implements lifecycle.Environment: it stores the administrator's kubeconfig of a cluster
// that was built, as a file in --state-dir. It never joins the cluster to a hub; the command does
// that with --join.
func (e environment) Built(_ context.Context, kubeconfig []byte, _ clusterv1alpha1.SyncMode, _ func(context.Context) (*rest.Config, error)) error {
	_, err := e.SaveKubeconfig(e.cluster, kubeconfig)
	return err
}
