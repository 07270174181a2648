package apply

import "k8s.io/apimachinery/pkg/runtime/schema"

// Placement is what one cluster has, and shall have, of a binding.
type Placement struct {
	Cluster string
	// Wanted is how many replicas the binding wants there; 0 where it wants none. An object of a
	// kind without replicas is one of one.
	Wanted int32
	// Moving is how many replicas move out of the cluster.
	Moving int32
	// Available is how many replicas are available there; 0 when that is not known.
	Available int32
	// Current is true when the copy is the manifest as it is wanted now.
	Current bool
}

// Release says how many of the replicas that move out of each cluster have to stay there for
// now: the available replicas of all clusters must not fall below those that are wanted, or
// below those that are available if they are fewer. asked is how many the template asks for: more
// than the clusters are wanted to have where not all of them fit, 0 where they are copied. Only
// replicas of current copies count where the binding wants some; whatever is available counts
// where some move out. Placements come in an order that does not change, or what may go here and
// there would alternate.
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
		// Those that are not available go first, but a cluster is free to choose others.
		loss := min(p.Moving, p.Available)
		if loss <= surplus {
			surplus -= loss
			continue
		}
		if p.Wanted == 0 {
			stay[p.Cluster] = p.Moving // the object goes whole or not at all
			continue
		}
		stay[p.Cluster] = p.Moving - surplus
		surplus = 0
	}
	return stay
}

// dependency is true of kinds that workloads of their namespace may need for as long as they run.
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
