package apply

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
)

// share is the part of the completions of a divided Job that belongs to a cluster.
type share struct {
	// left is the share of the cluster by its parallelism, at most what the other clusters leave.
	left int64
	// unknown names a cluster with an unknown number of completions; empty: there is none. While
	// there is one, nothing begins in other clusters.
	unknown string
	// before is the number of completions that succeeded in earlier runs in the cluster; nil:
	// none.
	before *int64
}

// count sets w.Completions of a divided Job. It is the number with which its work began in the
// cluster or, for an elastic Job that began, the cluster's current share. count sets w.Uncounted to
// a cluster whose number of completions is unknown. id is the ID of the cluster.
func (a *Applier) count(w *Work, b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster, id string) {
	if w.Mark != nil {
		w.Completions = w.Mark.Completions
	}
	if !binding.Divided(b) || !interpreter.HasCompletions(source) {
		return
	}
	runs, copies := a.runs.of(b), a.mirror.Placed(b.UID)
	if s := completionsLeft(b, runs, copies, source, cluster, id, w.Request); s != nil {
		w.Uncounted = s.unknown
	}
	if w.Mark == nil || !interpreter.Elastic(source) {
		return
	}
	if s := completionsLeft(b, runs, copies, source, cluster, id, w.Mark.Rerun); s != nil && s.unknown == "" {
		w.Completions = &s.left
	}
}

// share returns the completions for the cluster in which work begins; nil if the completions are
// not divided. It counts the runs in the status of b.
func (n *beginning) share(b *workv1alpha2.ResourceBinding) *share {
	if n.source == nil || !binding.Divided(b) {
		return nil
	}
	return completionsLeft(b, b.Status.Runs, n.copies, n.source, n.cluster, n.id, n.request)
}

// completionsLeft returns the completions of a Job for a cluster; nil if they are not divided. It
// counts runs of the current template only, and with a request only those that counts accepts. The
// completions of another cluster come from its run or, if the run has no number, from its copy.
// copies are the copies of the binding in all clusters; id is the ID of the cluster.
func completionsLeft(
	b *workv1alpha2.ResourceBinding, runs []workv1alpha2.Run, copies []mirror.Object, source *unstructured.Unstructured, cluster, id, request string,
) *share {
	byParallelism, err := interpreter.Completions(source, b.Spec.Clusters, cluster)
	if err != nil || byParallelism == nil {
		return nil
	}
	left, _, _ := unstructured.NestedInt64(source.Object, "spec", "completions")
	elastic, s, marked := interpreter.Elastic(source), share{}, sets.New(cluster)
	take := func(r *workv1alpha2.Run) {
		taken, known := completionsOf(r, copyIn(b, copies, r.ClusterName), elastic)
		if left -= taken; !known && s.unknown == "" {
			s.unknown = r.ClusterName
		}
	}
	for i := range runs {
		r := &runs[i]
		switch {
		case r.TemplateUID != source.GetUID(), !counts(r, request):
		case r.ClusterName == cluster:
			s.before = succeededBefore(b, r, id)
			continue
		default:
			take(r)
		}
		marked.Insert(r.ClusterName)
	}
	// A copy without a run in the status was made by a version that recorded no runs.
	for i := range copies {
		o := &copies[i]
		from, err := mark.Parse(o.Source)
		if marked.Has(o.Cluster) || o.Name != b.Spec.Resource.Name || err == nil && from.Template != source.GetUID() {
			continue
		}
		phase := o.Ended
		if phase == "" {
			phase = workv1alpha2.RunBegan
		}
		take(&workv1alpha2.Run{ClusterName: o.Cluster, Phase: phase})
		marked.Insert(o.Cluster)
	}
	for _, i := range b.Status.AggregatedStatus {
		if !marked.Has(i.ClusterName) && i.Status != nil {
			take(&workv1alpha2.Run{ClusterName: i.ClusterName, Phase: workv1alpha2.RunBegan})
		}
	}
	if s.before != nil {
		left -= *s.before
	}
	s.left = max(0, min(*byParallelism, left))
	return &s
}

// counts reports whether a recorded run takes part in the division of completions for a request to
// run again. That is so for a run of this request, and for a copy that still runs, which serves the
// request as it is. Without a request ("") every run counts.
func counts(r *workv1alpha2.Run, request string) bool {
	return request == "" || r.Rerun == request || r.Phase == workv1alpha2.RunBegan && !r.Removed
}

// copyIn returns the copy of a binding in a cluster; nil if none is known.
func copyIn(b *workv1alpha2.ResourceBinding, copies []mirror.Object, cluster string) *mirror.Object {
	for i := range copies {
		if copies[i].Cluster == cluster && copies[i].Name == b.Spec.Resource.Name {
			return &copies[i]
		}
	}
	return nil
}

// completionsOf returns how many completions of a Job a recorded run takes from the other clusters.
// o is the copy in the cluster of the run; nil if none is known. elastic is true for a Job whose
// completions follow its parallelism. known is false if neither the run nor the copy shows the
// number.
func completionsOf(r *workv1alpha2.Run, o *mirror.Object, elastic bool) (taken int64, known bool) {
	if r.SucceededBefore != nil {
		taken = *r.SucceededBefore
	}
	fell, succeeded := r.Completions, r.Succeeded
	if o != nil && (r.CopyUID == "" || r.CopyUID == o.UID) {
		if fell == nil {
			fell = o.Completions
		}
		if succeeded == nil {
			succeeded = new(interpreter.Succeeded(o.Status))
		}
	}
	switch {
	case r.Phase == workv1alpha2.RunSkipped, r.Phase == workv1alpha2.RunRefused && fell == nil:
		return taken, true // no pod of this run starts
	case r.Removed && r.Phase != workv1alpha2.RunComplete || r.Phase == workv1alpha2.RunFailed:
		fell = succeeded // other clusters do the completions that are missing
	case elastic && !r.Phase.Ended():
		return taken, true // a running elastic Job follows the share of its cluster
	}
	if fell == nil {
		return taken, false
	}
	return taken + *fell, true
}

// succeededBefore returns how many completions of a Job have succeeded in a cluster before a run
// that begins now; nil: none. r is the record of the run before, and id the ID of the cluster. A
// copy that was deleted while it ran does not count: all of its completions run again.
func succeededBefore(b *workv1alpha2.ResourceBinding, r *workv1alpha2.Run, id string) *int64 {
	var n int64
	if r.SucceededBefore != nil {
		n = *r.SucceededBefore
	}
	if r.Removed || !binding.RunsThere(r, id) {
		done := r.Succeeded
		switch {
		case r.Phase == workv1alpha2.RunComplete:
			done = r.Completions
		case done == nil:
			done = new(interpreter.Succeeded(binding.LastStatus(b, r.ClusterName)))
		}
		if done != nil {
			n += *done
		}
	}
	if n == 0 {
		return nil
	}
	return &n
}
