package search

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// incomplete returns warnings if the database of the mirror cannot store some objects of a type in
// a cluster, or only a part of them; none if it stores all.
func (s *Search) incomplete(cluster string, gr schema.GroupResource) (warnings []string) {
	partly, missing := s.Mirror.Incomplete(cluster, gr)
	if partly > 0 {
		warnings = append(warnings, fmt.Sprintf("cluster %s: some %s are shown, and found, without a part that the mirror's database cannot store; their annotation %s names it",
			cluster, gr, fleetv1alpha1.IncompleteAnnotation))
	}
	if missing > 0 {
		warnings = append(warnings, fmt.Sprintf("cluster %s: some %s are missing, because the mirror's database cannot store their names", cluster, gr))
	}
	return warnings
}
