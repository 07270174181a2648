package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
)

// Work that ended stays ended in the binding, and only the copy of a run changes the run.
func TestRuns(t *testing.T) {
	const (
		began    = workv1alpha2.RunBegan
		complete = workv1alpha2.RunComplete
	)
	source := mark.Key("k").Sign(mark.Source{Template: "t"})
	at := metav1.NewTime(time.Unix(1000, 0))
	later := metav1.NewTime(time.Unix(2000, 0))
	run := func(phase workv1alpha2.RunPhase, change ...func(*workv1alpha2.Run)) workv1alpha2.Run {
		r := workv1alpha2.Run{ClusterName: "oak", TemplateUID: "t", Phase: phase, Time: at}
		for _, f := range change {
			f(&r)
		}
		return r
	}
	seen := func(r *workv1alpha2.Run) { r.CopyUID = "u" }
	now := func(r *workv1alpha2.Run) { r.Time = later }
	off := func(r *workv1alpha2.Run) { r.Removed = true }
	replaced := func(r *workv1alpha2.Run) { r.ReplacedUID = "u" }
	object := func(ended workv1alpha2.RunPhase) *mirror.Object {
		return &mirror.Object{UID: "u", Source: source, Ended: ended}
	}
	placed := view{cluster: "oak", placed: true, listed: true, contact: answers}
	with := func(change func(*view)) view { v := placed; change(&v); return v }
	there := func(ended workv1alpha2.RunPhase) view { return with(func(v *view) { v.object = object(ended) }) }
	gone := func(ended workv1alpha2.RunPhase) view { return with(func(v *view) { v.ended = object(ended) }) }
	for name, tc := range map[string]struct {
		is        []workv1alpha2.Run
		view      view
		elsewhere bool // the binding does not name the cluster
		finished  bool
		unjoined  bool
		want      []workv1alpha2.Run
	}{
		"NothingIsThere":             {nil, placed, false, false, false, nil},
		"SeenForTheFirstTime":        {[]workv1alpha2.Run{run(began)}, there(""), false, false, false, []workv1alpha2.Run{run(began, seen)}},
		"OfAnEarlierVersionOfTheHub": {nil, there(complete), false, true, false, []workv1alpha2.Run{run(complete, seen, now)}},
		"Ends":                       {[]workv1alpha2.Run{run(began, seen)}, there(complete), false, false, false, []workv1alpha2.Run{run(complete, seen, now)}},
		"EndedAndWentAtOnce":         {[]workv1alpha2.Run{run(began)}, gone(complete), false, false, false, []workv1alpha2.Run{run(complete, seen, now)}},
		"DeletedWhileItRan":          {[]workv1alpha2.Run{run(began, seen)}, gone(""), false, false, false, []workv1alpha2.Run{run(began, seen)}},
		"StaysEnded":                 {[]workv1alpha2.Run{run(complete, seen)}, placed, false, true, false, []workv1alpha2.Run{run(complete, seen)}},
		"TheDeletedCopyEndsNoRerun":  {[]workv1alpha2.Run{run(began, replaced)}, gone(complete), false, true, false, []workv1alpha2.Run{run(began, replaced)}},
		"TheCopyThatGoesEndsNoRerun": {[]workv1alpha2.Run{run(began, replaced)}, there(complete), false, true, false, []workv1alpha2.Run{run(began, replaced)}},
		"LeftTheCluster":             {[]workv1alpha2.Run{run(began, seen)}, with(func(v *view) { v.placed = false }), true, false, false, []workv1alpha2.Run{run(began, seen, off)}},
		"UnjoinedKeepsItsCopy":       {[]workv1alpha2.Run{run(began, seen)}, with(func(v *view) { v.placed = false }), true, false, true, []workv1alpha2.Run{run(began, seen)}},
		"MovedBack":                  {[]workv1alpha2.Run{run(began, seen, off)}, placed, false, false, false, []workv1alpha2.Run{run(began, seen, off)}},
		"MovedBackBeforeItWent":      {[]workv1alpha2.Run{run(began, seen, off)}, there(""), false, false, false, []workv1alpha2.Run{run(began, seen)}},
		"AddedToWhatIsComplete":      {nil, placed, false, true, false, []workv1alpha2.Run{run(workv1alpha2.RunSkipped, now)}},
		"AddedAndNotListed":          {nil, with(func(v *view) { v.listed = false }), false, true, false, nil},
		"OfAnotherTemplate":          {[]workv1alpha2.Run{run(complete, func(r *workv1alpha2.Run) { r.TemplateUID = "old" })}, placed, false, false, false, nil},
		"TheCopyOfTheTemplateBefore": {nil, with(func(v *view) {
			v.object = object(complete)
			v.object.Source = mark.Key("k").Sign(mark.Source{Template: "old"})
		}), false, false, false, nil},
		"RefusedAndThereAfterAll": {[]workv1alpha2.Run{run(workv1alpha2.RunRefused)}, there(""), false, false, false, []workv1alpha2.Run{run(began, seen)}},
	} {
		t.Run(name, func(t *testing.T) {
			template := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"uid": "t"}}}
			if tc.finished {
				template.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}
			}
			b := &workv1alpha2.ResourceBinding{Status: workv1alpha2.BindingStatus{Runs: tc.is}}
			b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "batch/v1", Kind: "Job"}
			if !tc.elsewhere {
				b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "oak"}}
			}
			got := runs(b, template, []view{tc.view}, func(string) bool { return !tc.unjoined }, later.Time)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("runs (-want +got):\n%s", diff)
			}
		})
	}
}
