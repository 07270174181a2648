package apply

import "k8s.io/apimachinery/pkg/runtime/schema"

// Placement is the current and the wanted state of a binding in one cluster.
type Placement struct {
	Cluster string
	// Wanted is the number of replicas that the binding wants there; 0 if it wants none. An object
	// of a kind without replicas counts as one.
	Wanted int32
	// Moving is the number of replicas that move out of the cluster.
	Moving int32
	// Available is the number of available replicas there; 0 if that is not known.
	Available int32
	// Current is true if the copy has the current manifest.
	Current bool
}

// Release returns how many of the replicas that move out of each cluster have to stay there for
// now. The available replicas of all clusters must not fall below the wanted ones or, if fewer
// are available, below the available ones. asked is the number of replicas in the template: it
// is larger than what the clusters want if not all fit, and 0 if each cluster has all of them.
// Where the binding wants replicas, only those of current copies count. Where replicas move
// out, all available ones count. placements must have a stable order, or the clusters that may
// release replicas would alternate. A cluster that is not in stay may release all that move.
func Release(placements []Placement, asked int32) (stay map[string]int32) {
	var wanted, available int32
	for _, p := range placements {
		wanted += p.Wanted
		if p.Current || p.Moving > 0 {
			available += p.Available
		}
	}
	surplus := max(0, available-max(wanted, asked))
	stay = map[string]int32{}
	for _, p := range placements {
		if p.Moving == 0 {
			continue
		}
		// Unavailable replicas should go first, but the cluster is free to choose others.
		loss := min(p.Moving, p.Available)
		if loss <= surplus {
			surplus -= loss
			continue
		}
		if p.Wanted == 0 {
			stay[p.Cluster] = p.Moving // a copy that is not wanted is removed as a whole or not at all
			continue
		}
		stay[p.Cluster] = p.Moving - surplus
		surplus = 0
	}
	return stay
}

// dependency reports whether workloads in the namespace may need objects of the kind for as
// long as they run.
func dependency(gvk schema.GroupVersionKind) bool {
	if gvk.Group != "" {
		return false
	}
	switch gvk.Kind {
	case "ConfigMap", "Secret", "ServiceAccount", "Service", "PersistentVolumeClaim":
		return true
	default:
		return false
	}
}
