package explanation

import (
	"maps"
	"slices"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// waitsRemoval calls add for the clusters that may still have copies while the binding is deleted,
// with the reason. Clusters with the same reason share a call. If the caller sees no such cluster,
// there is one call without clusters.
func (f *facts) waitsRemoval(add func(fleetv1alpha1.WaitReason, string, ...string), seen *visibilityFilter) {
	still := "copies still exist" + propagation(f.binding)
	clusters := map[string][]string{still: nil}
	for _, cluster := range seen.clusters(f.keeping) {
		message := still
		if slices.Contains(f.away, cluster) {
			message = "the cluster does not answer: its copies are deleted when it answers again, or left there if it is unjoined"
		} else if r, known := f.results[cluster]; known && r.Current && !r.Applied && r.Message != "" {
			message = r.Message
		}
		clusters[message] = append(clusters[message], cluster)
	}
	for _, message := range slices.Sorted(maps.Keys(clusters)) {
		if len(clusters[message]) > 0 || len(clusters) == 1 {
			add(fleetv1alpha1.WaitRemoval, message, clusters[message]...)
		}
	}
}
