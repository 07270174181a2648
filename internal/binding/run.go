package binding

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

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

// SetRun returns runs with another one in place of that of its cluster. They are in the order of their clusters.
func SetRun(runs []workv1alpha2.Run, r workv1alpha2.Run) []workv1alpha2.Run {
	runs = slices.DeleteFunc(slices.Clone(runs), func(other workv1alpha2.Run) bool { return other.ClusterName == r.ClusterName })
	runs = append(runs, r)
	slices.SortFunc(runs, func(a, b workv1alpha2.Run) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
	return runs
}
