package addon

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/chart"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// release is a chart that is rendered, with the name and the namespace that it sees as those of its
// Helm release.
type release struct {
	name, namespace string
	chart           clusterv1alpha1.Chart
	// values are those that Orrery sets. Values in chart, which the user has set, have precedence.
	values map[string]any
}

// chartObjects renders a chart into objects. The result says in source which chart and values they
// are from. Random parts of an object, which differ between two renderings, do not count in the
// object's digest: they are no reason to apply the object again.
//
// It returns an error for a chart that does not support the Kubernetes version of the spec.
func chartObjects(ctx context.Context, in Input, r release) ([]*unstructured.Unstructured, plan.Source, error) {
	from := chart.Reference{Path: r.chart.Path, Repo: r.chart.Repo, Name: r.chart.Name, Version: r.chart.Version}
	if from.Path != "" {
		if err := localPath(in); err != nil {
			return nil, plan.Source{}, fmt.Errorf("chart.path %s: %w", from.Path, err)
		}
	}
	c, err := chart.Load(ctx, from, func(ctx context.Context, url string) ([]byte, error) { return read(ctx, in, url) })
	if err != nil {
		return nil, plan.Source{}, err
	}
	if err := c.Supports(in.Spec.Kubernetes.Version); err != nil {
		return nil, plan.Source{}, fmt.Errorf("%w, and spec.provision.kubernetes.version is %s: choose another version of one of them", err, in.Spec.Kubernetes.Version)
	}
	var given []byte
	if r.chart.Values != nil {
		given = r.chart.Values.Raw
	}
	values, err := c.Values(given, r.values)
	if err != nil {
		return nil, plan.Source{}, err
	}
	source := plan.Source{Kind: plan.SourceChart, Location: from.Location(), Name: c.Name, Version: c.Version, Digest: c.Digest, Values: digestOf(values)}
	rendered, err := c.Render(values, chart.Release{Name: r.name, Namespace: r.namespace, Kubernetes: in.Spec.Kubernetes.Version})
	if err != nil {
		return nil, plan.Source{}, err
	}
	objects := make([]*unstructured.Unstructured, 0, len(rendered))
	for _, o := range rendered {
		if o.Stable != nil {
			setDigest(o.Unstructured, digestOf(o.Stable))
		}
		objects = append(objects, o.Unstructured)
	}
	return objects, source, nil
}
