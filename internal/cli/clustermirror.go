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

// clusterMirror requests from the hub which types of a cluster the hub mirrors, and how old their
// data is. cfg is the configuration of a client for the root of the hub, without a path.
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
		return nil, fmt.Errorf("read what is mirrored from %s: %w", cluster, err)
	}
	return m, nil
}

// describeMirror prints the tables of "orrery cluster describe" about the mirror of a cluster. They
// show the mirrored types with the age of their data, the other types with the reason, and settings
// that have no effect.
func describeMirror(w io.Writer, m *fleetv1alpha1.ClusterMirror) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	name := func(group, resource string) string {
		return schema.GroupResource{Group: group, Resource: resource}.String()
	}
	lag := "current"
	switch {
	case !m.Reachable && len(m.Types) == 0:
		lag = "not read yet"
	case m.LagSeconds > 0:
		lag = "the oldest was last seen " + duration.HumanDuration(time.Duration(m.LagSeconds)*time.Second) + " ago"
	}
	if err := say(w, "\nMirror: %d types, %s\n", len(m.Types), lag); err != nil {
		return err
	}
	// Flush returns the error.
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
		// Flush returns the error.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name(one.Group, one.Resource), one.Version, state,
			duration.HumanDuration(time.Duration(one.LagSeconds)*time.Second), objects, why)
	}
	_ = say(t, "\nNOT MIRRORED\tWHY\n") // Flush returns the error
	for _, one := range m.Refused {
		_ = say(t, "%s\t%s\n", name(one.Group, one.Resource), one.Reason) // Flush returns the error
	}
	if err := t.Flush(); err != nil || len(m.Problems) == 0 {
		return err
	}
	return say(w, "\nSETTINGS WITHOUT EFFECT\n%s\n", neutralLines(m.Problems))
}
