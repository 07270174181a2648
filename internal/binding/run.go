package binding

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// RunIn returns the run of a template in a cluster: the record in status.runs of a binding that
// work, such as a Job, began there. It is nil if there is none. The result points into runs.
func RunIn(runs []workv1alpha2.Run, template types.UID, cluster string) *workv1alpha2.Run {
	for i := range runs {
		if runs[i].ClusterName == cluster && runs[i].TemplateUID == template {
			return &runs[i]
		}
	}
	return nil
}

// Ended returns how many of the runs, the records in status.runs of a binding, have ended.
func Ended(runs []workv1alpha2.Run) (n int) {
	for _, r := range runs {
		if r.Phase.Ended() {
			n++
		}
	}
	return n
}

// RunsThere reports whether a run belongs to the cluster with an ID (see member.ID), and not to an
// earlier cluster with the same name. A run without an ID, which an earlier version wrote, belongs
// to every cluster with its name. So does every run while the ID of the cluster is unknown ("").
func RunsThere(r *workv1alpha2.Run, id string) bool {
	return r.ClusterID == "" || id == "" || r.ClusterID == id
}

// LastStatus returns the status of the copy in a cluster, as the status of the binding stores it.
// It is nil if there is none, or it cannot be decoded.
func LastStatus(b *workv1alpha2.ResourceBinding, cluster string) map[string]any {
	for _, i := range b.Status.AggregatedStatus {
		var status map[string]any
		if i.ClusterName == cluster && i.Status != nil && json.Unmarshal(i.Status.Raw, &status) == nil {
			return status
		}
	}
	return nil
}

// SetRun returns a copy of runs, sorted by cluster, with r in place of all runs in r's cluster,
// also those of other templates.
func SetRun(runs []workv1alpha2.Run, r workv1alpha2.Run) []workv1alpha2.Run {
	runs = slices.DeleteFunc(slices.Clone(runs), func(other workv1alpha2.Run) bool { return other.ClusterName == r.ClusterName })
	runs = append(runs, r)
	slices.SortFunc(runs, func(a, b workv1alpha2.Run) int { return cmp.Compare(a.ClusterName, b.ClusterName) })
	return runs
}
