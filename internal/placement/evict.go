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

// holding is what a placement has in one cluster, and what it shall have there.
type holding struct {
	cluster string
	held    int64 // the replicas of the target and of what still moves out
	wanted  int64
	named   bool // the new placement names the cluster
	moves   int64
}

// evictions are what moves out of clusters when a placement changes: it stays there until as
// much is available elsewhere. What a user scales down is no move, and out of a cluster that
// leaves nothing moves: the leaving itself takes it. An eviction stands until the copy in
// its cluster is known to be as small as its target.
func evictions(
	s *fleet.Snapshot, before, want *workv1alpha2.BindingSpec, copies func(string) (int32, presence.Presence),
) []workv1alpha2.GracefulEvictionTask {
	holdings := compare(before, want)
	whole := want.Replicas == nil
	if !whole && want.ReplicaSchedulingType == policyv1alpha1.Divided {
		// What a user asks for less than is placed is no move.
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

// placed is how many replicas a placement has in all.
func placed(spec *workv1alpha2.BindingSpec) (total int64) {
	for _, t := range spec.Clusters {
		total += number(t.Replicas)
	}
	return total
}

// compare returns what is and what shall be in the clusters of the old placement, by name.
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

// moves says how many of the replicas that clusters lose move: all but those that a user
// scaled down. Clusters that lose everything come first, the others move their share.
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

// apportion gives moves to clusters in proportion to what they lose, by largest remainder
// and then by name, and returns how many it gave.
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

// released is true when nothing is left in a cluster that would have to move.
func released(h *holding, copies func(string) (int32, presence.Presence)) bool {
	if copies == nil {
		return false
	}
	asked, known := copies(h.cluster)
	return known == presence.Absent || known == presence.Present && int64(asked) <= h.wanted
}
