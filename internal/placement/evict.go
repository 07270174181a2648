package placement

import (
	"cmp"
	"slices"
	"strings"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/presence"
)

// holding has the numbers of replicas of one template in one cluster, before and after a decision.
type holding struct {
	cluster string
	held    int64 // replicas of the old placement, and those that its eviction task keeps
	wanted  int64 // replicas of the new placement
	named   bool  // the new placement names the cluster
	moves   int64 // lost replicas that move to other clusters; moves sets it
}

// evictions returns the eviction tasks of a changed placement, sorted by cluster. A task keeps
// replicas, or the whole object, in a cluster that loses them until as many are available in other
// clusters. Replicas that a user scaled down are not kept. A cluster that leaves the fleet gets no
// task: its removal deletes the copies.
//
// before and want are the old and the new spec of the binding. A task of before stays until the
// copy in its cluster is known to be as small as its target. copies returns the replicas that the
// copy in a cluster asks for; nil: the copies are unknown. behind reports whether the copy in a
// cluster stays without Orrery's marks (PurgeNever): it gets a task even without replicas.
func evictions(
	s *fleet.Snapshot, before, want *workv1alpha2.BindingSpec, copies func(string) (int32, presence.Presence), behind func(string) bool,
) []workv1alpha2.GracefulEvictionTask {
	holdings := compare(before, want)
	whole := want.Replicas == nil
	if !whole && want.ReplicaSchedulingType == policyv1alpha1.Divided {
		// Replicas by which a user scaled the template down do not move.
		moves(holdings, max(0, min(number(before.Replicas), placed(before))-number(want.Replicas)))
	} else {
		for i := range holdings {
			if h := &holdings[i]; !h.named {
				h.moves = h.held
			}
		}
	}
	var tasks []workv1alpha2.GracefulEvictionTask
	for i := range holdings {
		h := &holdings[i]
		stays := !h.named && behind(h.cluster)
		if h.moves <= 0 && (!whole || h.named) && !stays {
			continue
		}
		if c, ok := s.Cluster(h.cluster); !ok || c.Leaving || released(h, copies, stays) {
			continue
		}
		task := workv1alpha2.GracefulEvictionTask{FromCluster: h.cluster}
		if !whole {
			task.Replicas = new(int32(h.moves)) //nolint:gosec // at most what was placed there
		}
		tasks = append(tasks, task)
	}
	return tasks
}

// placed returns the sum of the replicas in spec.clusters of a binding. It does not count replicas
// that only eviction tasks keep.
func placed(spec *workv1alpha2.BindingSpec) (total int64) {
	for _, t := range spec.Clusters {
		total += number(t.Replicas)
	}
	return total
}

// compare returns a holding for each cluster that before, the old spec of the binding, names as a
// target or in an eviction task, sorted by name. It returns nil if nothing moves: want has the same
// targets and before has no eviction task.
func compare(before, want *workv1alpha2.BindingSpec) []holding {
	if len(before.GracefulEvictionTasks) == 0 && slices.EqualFunc(before.Clusters, want.Clusters, sameTarget) {
		return nil
	}
	holdings := make([]holding, 0, len(before.Clusters)+len(before.GracefulEvictionTasks))
	for _, t := range before.Clusters {
		holdings = append(holdings, holding{cluster: t.Name, held: number(t.Replicas)})
	}
	for _, t := range before.GracefulEvictionTasks {
		holdings = append(holdings, holding{cluster: t.FromCluster, held: number(t.Replicas)})
	}
	slices.SortFunc(holdings, byName)
	merged := holdings[:0]
	for _, h := range holdings {
		if n := len(merged); n > 0 && merged[n-1].cluster == h.cluster {
			merged[n-1].held += h.held
			continue
		}
		merged = append(merged, h)
	}
	for _, t := range want.Clusters {
		if i, found := slices.BinarySearchFunc(merged, holding{cluster: t.Name}, byName); found {
			merged[i].named, merged[i].wanted = true, number(t.Replicas)
		}
	}
	return merged
}

func byName(a, b holding) int { return strings.Compare(a.cluster, b.cluster) }

// sameTarget reports whether two targets have the same cluster and number of replicas; nil replicas
// equal 0.
func sameTarget(a, b workv1alpha2.TargetCluster) bool {
	return a.Name == b.Name && number(a.Replicas) == number(b.Replicas)
}

// number returns the replicas; 0 for nil.
func number(replicas *int32) int64 {
	if replicas == nil {
		return 0
	}
	return int64(*replicas)
}

// moves sets the field moves of each holding: how many of the replicas that its cluster loses must
// first be available in other clusters. In total these are all lost replicas less scaledDown, the
// number by which the template was scaled down. Clusters that the new placement does not name come
// first. The others share the rest in proportion to their loss.
func moves(holdings []holding, scaledDown int64) {
	var left, kept []*holding
	total := -scaledDown
	for i := range holdings {
		h := &holdings[i]
		if h.held <= h.wanted {
			continue
		}
		total += h.held - h.wanted
		if h.named {
			kept = append(kept, h)
		} else {
			left = append(left, h)
		}
	}
	apportion(kept, total-apportion(left, total))
}

// apportion divides total among the clusters in losing, in proportion to the replicas that each
// loses, and sets their field moves. What rounding leaves goes to the clusters with the largest
// remainders, of equal ones in the order of losing. No cluster gets more than it loses. apportion
// returns how many it divided, and reorders losing.
func apportion(losing []*holding, total int64) int64 {
	var lost int64
	for _, h := range losing {
		lost += h.held - h.wanted
	}
	total = min(total, lost)
	if total <= 0 {
		return 0
	}
	rest := total
	for _, h := range losing {
		h.moves = (h.held - h.wanted) * total / lost
		rest -= h.moves
	}
	remainder := func(h *holding) int64 { return (h.held - h.wanted) * total % lost }
	slices.SortStableFunc(losing, func(a, b *holding) int { return cmp.Compare(remainder(b), remainder(a)) })
	for _, h := range losing[:rest] {
		h.moves++
	}
	return total
}

// released reports whether the copy in the cluster of h is known to be gone, or to ask for at most
// h.wanted replicas. A copy that stays without Orrery's marks (stays) is released only when it has
// none. It is false if copies, which reads the copy, is nil.
func released(h *holding, copies func(string) (int32, presence.Presence), stays bool) bool {
	if copies == nil {
		return false
	}
	asked, known := copies(h.cluster)
	return known == presence.Absent || known == presence.Present && int64(asked) <= h.wanted && !stays
}
