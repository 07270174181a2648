package explanation

import (
	"maps"
	"slices"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// waitsRemoval adds which clusters may have copies that are being removed, and why. Clusters
// with the same message share an entry.
func (f *facts) waitsRemoval(add func(fleetv1alpha1.WaitReason, string, ...string), seen *sight) {
	still := "copies are there still" + propagation(f.binding)
	clusters := map[string][]string{still: nil}
	for _, cluster := range seen.clusters(f.keeping) {
		message := still
		if slices.Contains(f.away, cluster) {
			message = "the cluster does not answer: its copies go when it answers again, or are given up when it is unjoined"
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
