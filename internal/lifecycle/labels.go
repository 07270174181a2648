package lifecycle

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// labelsAnnotation on a Node has the keys of the labels that Orrery set, sorted and separated by
// commas. A label that is wanted no more is removed only if its key is in it.
const labelsAnnotation = "lifecycle.orrery.dev/labels"

// labelsPatch returns the part of a merge patch's metadata that sets the wanted labels of a node
// and removes those that were wanted before. It is empty if there is nothing to change.
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
			labels[key] = nil // null removes a field
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
