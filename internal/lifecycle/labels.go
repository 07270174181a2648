package lifecycle

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// labelsAnnotation is the annotation on a Node with the keys of the labels that Orrery set, sorted
// and separated by commas. When a label is no longer wanted, it is removed only if the annotation
// lists its key.
const labelsAnnotation = "lifecycle.orrery.dev/labels"

// labelsPatch returns the metadata of a merge patch that gives a Node the wanted labels. The patch
// also removes labels that Orrery set and that are no longer wanted, and updates labelsAnnotation.
// The result is empty, not nil, if nothing must change.
func labelsPatch(n *corev1.Node, want map[string]string) map[string]any {
	labels := map[string]any{}
	for key, value := range want {
		if have, ok := n.Labels[key]; !ok || have != value {
			labels[key] = value
		}
	}
	mark := n.Annotations[labelsAnnotation]
	for key := range strings.SplitSeq(mark, ",") {
		_, wanted := want[key]
		if _, ok := n.Labels[key]; ok && !wanted {
			labels[key] = nil // null in a merge patch removes the field
		}
	}
	metadata := map[string]any{}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if marked := strings.Join(slices.Sorted(maps.Keys(want)), ","); marked != mark {
		metadata["annotations"] = map[string]any{labelsAnnotation: marked}
	}
	return metadata
}
