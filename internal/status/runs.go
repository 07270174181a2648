package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
)

// maxRuns is the number of entries of status.runs of a binding that the schema allows.
const maxRuns = 5000

// runs returns the new status.runs of the binding b: for each cluster, how far the work of the
// template, such as a Job, has come and how it ended. The status stores this because the copy may
// no longer exist later. Entries of earlier templates are left out, and at most maxRuns are
// returned. If template is nil, it is not known, and the entries stay.
//
// sure reports whether it is known if a cluster is a member. Before that, an entry does not become
// Removed. b is not changed.
func runs(b *workv1alpha2.ResourceBinding, template *unstructured.Unstructured, views []view, sure func(string) bool, now time.Time) []workv1alpha2.Run {
	if template == nil {
		return b.Status.Runs
	}
	uid, at := template.GetUID(), metav1.NewTime(now.Truncate(time.Second))
	divided := binding.Divided(b) && interpreter.HasCompletions(template)
	all := make([]workv1alpha2.Run, 0, len(b.Status.Runs))
	for _, r := range b.Status.Runs {
		if r.TemplateUID == uid {
			all = append(all, r)
		}
	}
	byCluster := make(map[string]*view, len(views))
	for i := range views {
		byCluster[views[i].cluster] = &views[i]
	}
	for i := range all {
		r := &all[i]
		_, placed := binding.Target(b, r.ClusterName)
		v := byCluster[r.ClusterName]
		if v != nil && !binding.RunsThere(r, v.id) {
			placed, v = false, nil // another cluster has that name now
		}
		if v != nil {
			follow(r, v, uid, at)
			count(r, b, v, divided)
		}
		if !placed && sure(r.ClusterName) {
			r.Removed = true
			leave(r, b, v, divided)
		}
	}
	known := workv1alpha2.BindingStatus{Runs: all}
	ends, finished := interpreter.Ends(binding.Kind(b).GroupKind()), interpreter.RunPhase(template)
	for i := range views {
		v := &views[i]
		if !v.placed || binding.RunIn(known.Runs, uid, v.cluster) != nil {
			continue
		}
		r := workv1alpha2.Run{ClusterName: v.cluster, ClusterID: v.id, TemplateUID: uid, Phase: workv1alpha2.RunBegan, Time: at}
		switch {
		case v.object != nil && of(v.object, uid) && (ends || v.object.Ended != ""):
			follow(&r, v, uid, at)
			count(&r, b, v, divided)
		case v.object == nil && v.listed && v.contact == answers && finished != "":
			r.Phase, r.Rerun = workv1alpha2.RunSkipped, followed(known.Runs, template)
		default:
			continue
		}
		known.Runs = binding.SetRun(known.Runs, r)
	}
	if len(known.Runs) == 0 {
		return nil
	}
	return known.Runs[:min(maxRuns, len(known.Runs))]
}

// follow updates the run r to the observed state of the copy in its cluster. If the copy ended and
// is gone, its last state counts. An end that is recorded stays. It does nothing if the copy does
// not belong to the run. template is the UID of the template, and at the time to record.
func follow(r *workv1alpha2.Run, v *view, template types.UID, at metav1.Time) {
	end := func(o *mirror.Object) {
		if r.ClusterID == "" && r.CopyUID == "" {
			r.ClusterID = v.id
		}
		r.CopyUID = o.UID
		if r.Phase.Ended() && r.Phase != workv1alpha2.RunSkipped {
			return
		}
		if o.Ended == "" {
			r.Phase = workv1alpha2.RunBegan
			return
		}
		r.Phase, r.Time = o.Ended, at
		if r.Completions != nil {
			r.Succeeded = new(interpreter.Succeeded(o.Status))
			// The completions of an Indexed Job may have followed its share.
			r.Completions = cmp.Or(o.Completions, r.Completions)
		}
	}
	switch o := v.object; {
	case o != nil && of(o, template) && o.UID != r.ReplacedUID && (o.UID == r.CopyUID || r.CopyUID == "" || !r.Phase.Ended()):
		if r.Removed && v.placed && !o.Deleting {
			r.Removed = false // the copy exists, and so was not removed
		}
		end(o)
	case v.ended != nil && v.ended.Ended != "" && v.ended.UID != r.ReplacedUID && (v.ended.UID == r.CopyUID || r.CopyUID == ""):
		end(v.ended)
	}
}

// count sets r.Completions, the completions of a divided Job in the cluster of the run r, if r
// lacks them, as for an adopted copy. They come from the spec of the copy or, if the copy is gone
// and the run is Complete, from its last status. For a failed run it sets r.Succeeded.
func count(r *workv1alpha2.Run, b *workv1alpha2.ResourceBinding, v *view, divided bool) {
	if !divided || r.Phase == workv1alpha2.RunSkipped || r.Phase == workv1alpha2.RunRefused {
		return
	}
	for _, o := range []*mirror.Object{v.object, v.ended} {
		if o == nil || o.UID != r.CopyUID {
			continue
		}
		if r.Completions == nil {
			r.Completions = o.Completions
		}
		if r.Succeeded == nil && r.Phase == workv1alpha2.RunFailed {
			r.Succeeded = new(interpreter.Succeeded(o.Status))
		}
	}
	if n := interpreter.Succeeded(binding.LastStatus(b, r.ClusterName)); r.Completions == nil && r.Phase == workv1alpha2.RunComplete && n > 0 {
		r.Completions = &n
	}
}

// leave sets r.Succeeded: how many completions of a Job succeeded in a cluster that the Job leaves
// before its work ended there. The number never falls. If no status was seen and the cluster has
// not been listed yet, the number stays unknown. divided is true if the clusters share the
// completions.
func leave(r *workv1alpha2.Run, b *workv1alpha2.ResourceBinding, v *view, divided bool) {
	if r.Completions == nil && !divided || r.Phase.Ended() {
		return
	}
	var status map[string]any
	switch {
	case v != nil && v.object != nil:
		status = v.object.Status
	case v != nil && v.ended != nil && v.ended.UID == r.CopyUID:
		status = v.ended.Status
	default:
		status = binding.LastStatus(b, r.ClusterName)
		if status == nil && v != nil && (v.contact == unsure || v.contact == answers && !v.listed) {
			return
		}
	}
	if n := interpreter.Succeeded(status); r.Succeeded == nil || *r.Succeeded < n {
		r.Succeeded = &n
	}
}

// of reports whether an object in a cluster is a copy of the template with this UID, as its
// annotation work.orrery.dev/source says.
func of(o *mirror.Object, template types.UID) bool {
	source, err := mark.Parse(o.Source)
	return err == nil && source.Template == template
}

// followed returns the request of a user to run the template again, from its annotation, if a run
// in some cluster was started because of it; else "".
func followed(runs []workv1alpha2.Run, template *unstructured.Unstructured) string {
	asked := template.GetAnnotations()[workv1alpha2.RerunAnnotation]
	for i := range runs {
		if asked != "" && runs[i].Rerun == asked {
			return asked
		}
	}
	return ""
}

// rests reports whether no copy is in the cluster because the work has ended there, or is not to be
// done there.
func (v *view) rests() bool {
	return v.object == nil && v.listed && v.run != nil && v.run.Phase.Ended()
}

// skipped reports whether the work is not to be done in the cluster, because the work of the
// template had ended before the cluster was added.
func (v *view) skipped() bool { return v.rests() && v.run.Phase == workv1alpha2.RunSkipped }

// restingItem sets health and status in i, the entry of a cluster for which v.rests returns true.
// The status is the last one of the copy or, if none was seen, what the run shows.
func restingItem(i *workv1alpha2.AggregatedStatusItem, v *view, kind schema.GroupKind) error {
	i.Health = workv1alpha2.ResourceHealthy
	if v.run.Phase == workv1alpha2.RunFailed {
		i.Health = workv1alpha2.ResourceUnhealthy
	}
	var status map[string]any
	switch {
	case v.run.Phase == workv1alpha2.RunSkipped:
		i.Status = nil
		return nil
	case v.ended != nil && v.ended.UID == v.run.CopyUID && len(v.ended.Status) > 0:
		status = v.ended.Status
	case i.Status != nil:
		return nil // the entry has the last status that was seen
	default:
		var succeeded int64
		if v.run.Succeeded != nil {
			succeeded = *v.run.Succeeded
		}
		status = interpreter.EndedStatus(kind, v.run.Phase, succeeded, v.run.Time.Time)
	}
	if len(status) == 0 {
		return nil
	}
	raw, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("encode status in cluster %s: %w", v.cluster, err)
	}
	if i.Status == nil || !sameJSON(raw, i.Status.Raw) {
		i.Status = &runtime.RawExtension{Raw: raw}
	}
	return nil
}
