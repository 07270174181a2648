package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// placement is one template in one cluster, with its state there: a row of "orrery cluster
// describe" and "orrery demo status".
type placement struct {
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	// Replicas is the number of replicas that the hub wants there; nil for kinds without replicas.
	Replicas *int32 `json:"replicas,omitempty"`
	// State is Healthy, Unhealthy or Unknown once the template is applied there. Before, it is
	// Applying, or the message of the cluster's refusal.
	State string `json:"state"`
}

// placements requests all bindings of the hub, and returns what they place in a cluster; "": in
// every cluster. The result is sorted by namespace, kind, name and cluster, and not nil without an
// error.
func placements(ctx context.Context, c client.Client, cluster string) ([]placement, error) {
	bindings, err := listBindings(ctx, c)
	if err != nil {
		return nil, err
	}
	placed := make([]placement, 0)
	for _, b := range bindings {
		for _, target := range b.Spec.Clusters {
			if cluster == "" || target.Name == cluster {
				placed = append(placed, placement{
					Namespace: b.Namespace, Kind: b.Spec.Resource.Kind, Name: b.Spec.Resource.Name,
					Cluster: target.Name, Replicas: target.Replicas, State: state(b, target.Name),
				})
			}
		}
	}
	slices.SortFunc(placed, func(a, b placement) int {
		return cmp.Or(
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cluster, b.Cluster),
		)
	})
	return placed, nil
}

// listBindings requests all ResourceBindings and all ClusterResourceBindings of the hub, and
// returns both kinds in the form of ResourceBindings. The caller needs the right to list both.
func listBindings(ctx context.Context, c client.Client) ([]*workv1alpha2.ResourceBinding, error) {
	var namespaced workv1alpha2.ResourceBindingList
	if err := c.List(ctx, &namespaced); err != nil {
		return nil, fmt.Errorf("list bindings: %w", err)
	}
	var wide workv1alpha2.ClusterResourceBindingList
	if err := c.List(ctx, &wide); err != nil {
		return nil, fmt.Errorf("list bindings: %w", err)
	}
	bindings := make([]*workv1alpha2.ResourceBinding, 0, len(namespaced.Items)+len(wide.Items))
	for i := range namespaced.Items {
		bindings = append(bindings, namespaced.Items[i].Binding())
	}
	for i := range wide.Items {
		bindings = append(bindings, wide.Items[i].Binding())
	}
	return bindings, nil
}

// state returns the state of a binding's template in a cluster, for placement.State. It is Applying
// if the cluster has reported nothing yet.
func state(b *workv1alpha2.ResourceBinding, cluster string) string {
	for _, item := range b.Status.AggregatedStatus {
		switch {
		case item.ClusterName != cluster:
		case item.Applied:
			return string(item.Health)
		case item.AppliedMessage != "":
			return item.AppliedMessage
		}
	}
	return "Applying"
}

// printPlacements prints a table of placements, or that nothing is placed.
func printPlacements(w io.Writer, placed []placement) error {
	if len(placed) == 0 {
		return say(w, "Nothing is placed.\n")
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "NAMESPACE\tKIND\tNAME\tCLUSTER\tREPLICAS\tSTATE") //nolint:errcheck // Flush returns the error
	for _, p := range placed {
		replicas := "-"
		if p.Replicas != nil {
			replicas = strconv.Itoa(int(*p.Replicas))
		}
		// Flush returns the error.
		_ = say(t, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(p.Namespace, "-"), p.Kind, p.Name, p.Cluster, replicas, p.State)
	}
	return t.Flush()
}
