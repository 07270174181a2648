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

// holding is the present and the wanted number of replicas in one cluster.
type holding struct {
	cluster string
	held    int64 // replicas of the target and of its eviction
	wanted  int64
	named   bool // the new placement names the cluster
	moves   int64
}

// evictions returns the eviction tasks of a changed placement. Replicas stay in a cluster until as
// many are available elsewhere. Replicas that a user scaled down do not move. A cluster that leaves
// the fleet gets no task: its removal deletes the copies. A task remains until the copy in its
// cluster is known to be as small as its target.
func evictions(
	s *fleet.Snapshot, before, want *workv1alpha2.BindingSpec, copies func(string) (int32, presence.Presence),
) []workv1alpha2.GracefulEvictionTask {
	holdings := compare(before, want)
	whole := want.Replicas == nil
	if !whole && want.ReplicaSchedulingType == policyv1alpha1.Divided {
		// Replicas that a user scaled down do not move.
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
		if h.moves <= 0 && (!whole || h.named) {
			continue
		}
		if c, ok := s.Cluster(h.cluster); !ok || c.Leaving || released(h, copies) {
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

// placed returns the total number of replicas of a placement.
func placed(spec *workv1alpha2.BindingSpec) (total int64) {
	for _, t := range spec.Clusters {
		total += number(t.Replicas)
	}
	return total
}

// compare returns the holdings of the clusters in the old placement, sorted by name; nil if nothing
// changed and nothing moves.
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

func sameTarget(a, b workv1alpha2.TargetCluster) bool {
	return a.Name == b.Name && number(a.Replicas) == number(b.Replicas)
}

func number(replicas *int32) int64 {
	if replicas == nil {
		return 0
	}
	return int64(*replicas)
}

// moves sets how many of the lost replicas of each cluster move: all but scaledDown. Clusters that
// lose everything come first; the others get the rest in proportion to their loss.
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

// apportion distributes total moves over clusters in proportion to what they lose, by largest
// remainder and then by name. It returns the number that it distributed.
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

// released reports whether the copy in a cluster is known to be gone or as small as wanted.
func released(h *holding, copies func(string) (int32, presence.Presence)) bool {
	if copies == nil {
		return false
	}
	asked, known := copies(h.cluster)
	return known == presence.Absent || known == presence.Present && int64(asked) <= h.wanted
}
