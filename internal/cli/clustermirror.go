package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// clusterMirror requests from the hub what is mirrored from a cluster.
func clusterMirror(ctx context.Context, cfg *rest.Config, cluster string) (*fleetv1alpha1.ClusterMirror, error) {
	cfg = dynamic.ConfigFor(cfg)
	cfg.GroupVersion = &schema.GroupVersion{}
	c, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	body, err := c.Get().AbsPath(fleetv1alpha1.ClustersPath, cluster, "mirror").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	m := &fleetv1alpha1.ClusterMirror{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("read what is mirrored of %s: %w", cluster, err)
	}
	return m, nil
}

// describeMirror prints what is mirrored, how old it is, and what is not mirrored.
func describeMirror(w io.Writer, m *fleetv1alpha1.ClusterMirror) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	name := func(group, resource string) string {
		return schema.GroupResource{Group: group, Resource: resource}.String()
	}
	lag := "as the cluster has them"
	if m.LagSeconds > 0 {
		lag = "the oldest last seen " + duration.HumanDuration(time.Duration(m.LagSeconds)*time.Second) + " ago"
	}
	if err := say(w, "\nMirror: %d types, %s\n", len(m.Types), lag); err != nil {
		return err
	}
	// Flush reports it.
	_ = say(t, "\nMIRRORED\tVERSION\tSTATE\tLAG\tOBJECTS\tWHY\n")
	for _, one := range m.Types {
		state, why := string(one.State), one.Reason
		if one.Message != "" {
			state += " (" + one.Message + ")"
		}
		objects := one.Objects
		if objects == "" {
			objects = "all"
		}
		if one.Life != "" {
			objects += " for " + one.Life
		}
		// As above.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name(one.Group, one.Resource), one.Version, state,
			duration.HumanDuration(time.Duration(one.LagSeconds)*time.Second), objects, why)
	}
	_ = say(t, "\nNOT MIRRORED\tWHY\n") // as above
	for _, one := range m.Refused {
		_ = say(t, "%s\t%s\n", name(one.Group, one.Resource), one.Reason) // as above
	}
	if err := t.Flush(); err != nil || len(m.Problems) == 0 {
		return err
	}
	return say(w, "\nNOT HONOURED\n%s\n", neutralLines(m.Problems))
}
