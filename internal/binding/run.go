package binding

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// RunIn is what is said of the work of a template in a cluster; nil: nothing. It is not a copy.
func RunIn(runs []workv1alpha2.Run, template types.UID, cluster string) *workv1alpha2.Run {
	for i := range runs {
		if runs[i].ClusterName == cluster && runs[i].TemplateUID == template {
			return &runs[i]
		}
	}
	return nil
}

// Ended counts the runs that have ended.
func Ended(runs []workv1alpha2.Run) (n int) {
	for _, r := range runs {
		if r.Phase.Ended() {
			n++
		}
	}
	return n
}

// RunsThere reports whether a mark is about the cluster with an id. A mark without an id, which an
// earlier version wrote, is about every cluster of its name. While the id of the cluster is
// unknown, every mark of its name is about it.
func RunsThere(r *workv1alpha2.Run, id string) bool {
	return r.ClusterID == "" || id == "" || r.ClusterID == id
}

// LastStatus returns what the status of a binding says of its copy in a cluster; nil: nothing.
func LastStatus(b *workv1alpha2.ResourceBinding, cluster string) map[string]any {
	for _, i := range b.Status.AggregatedStatus {
		var status map[string]any
		if i.ClusterName == cluster && i.Status != nil && json.Unmarshal(i.Status.Raw, &status) == nil {
			return status
		}
	}
	return nil
}

// SetRun returns runs with another one in place of that of its cluster. They are in the order of their clusters.
func SetRun(runs []workv1alpha2.Run, r workv1alpha2.Run) []workv1alpha2.Run {
	runs = slices.DeleteFunc(slices.Clone(runs), func(other workv1alpha2.Run) bool { return other.ClusterName == r.ClusterName })
	runs = append(runs, r)
	slices.SortFunc(runs, func(a, b workv1alpha2.Run) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
	return runs
}
