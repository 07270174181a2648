package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
)

// The binding records how many completions a cluster got and how many succeeded there, if that
// is known, and which cluster a mark is for.
func TestRunsOfADividedJob(t *testing.T) {
	const began, complete = workv1alpha2.RunBegan, workv1alpha2.RunComplete
	at, later := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	run := func(phase workv1alpha2.RunPhase, change ...func(*workv1alpha2.Run)) []workv1alpha2.Run {
		r := workv1alpha2.Run{ClusterName: "oak", ClusterID: "id", TemplateUID: "t", CopyUID: "u", Phase: phase, Time: at}
		for _, f := range change {
			f(&r)
		}
		return []workv1alpha2.Run{r}
	}
	fell := func(n int64) func(*workv1alpha2.Run) { return func(r *workv1alpha2.Run) { r.Completions = &n } }
	done := func(n int64) func(*workv1alpha2.Run) { return func(r *workv1alpha2.Run) { r.Succeeded = &n } }
	off := func(r *workv1alpha2.Run) { r.Removed = true }
	now := func(r *workv1alpha2.Run) { r.Time = later }
	earlier := func(r *workv1alpha2.Run) { r.ClusterID = "" }
	job := func(completions, succeeded int64, ended workv1alpha2.RunPhase) *mirror.Object {
		return &mirror.Object{
			UID: "u", Source: mark.Key("k").Sign(mark.Source{Template: "t"}), Completions: &completions, Ended: ended, Status: map[string]any{"succeeded": succeeded},
		}
	}
	placed := view{cluster: "oak", id: "id", placed: true, listed: true, contact: answers}
	with := func(change func(*view)) view { v := placed; change(&v); return v }
	there := func(o *mirror.Object) view { return with(func(v *view) { v.object = o }) }
	for name, tc := range map[string]struct {
		is   []workv1alpha2.Run
		view view
		seen string // the last status of the copy
		want []workv1alpha2.Run
	}{
		"TheCopySaysIt":             {is: run(began), view: there(job(6, 1, "")), want: run(began, fell(6))},
		"ACopyWithoutAMark":         {view: there(job(6, 1, "")), want: run(began, fell(6), now)},
		"CompleteCopyWithoutAMark":  {view: there(job(6, 6, complete)), want: run(complete, fell(6), now)},
		"CompleteAndGone":           {is: run(complete), view: placed, seen: `{"succeeded":6}`, want: run(complete, fell(6))},
		"NobodyKnows":               {is: run(complete), view: placed, want: run(complete)},
		"FailedBeforeThatWasNoted":  {is: run(workv1alpha2.RunFailed), view: there(job(6, 4, workv1alpha2.RunFailed)), want: run(workv1alpha2.RunFailed, fell(6), done(4))},
		"ItsShareChangedMeanwhile":  {is: run(began, fell(10)), view: there(job(5, 5, complete)), want: run(complete, fell(5), done(5), now)},
		"LeavesUncounted":           {is: run(began), view: with(func(v *view) { v.placed, v.object = false, job(6, 3, "") }), want: run(began, fell(6), done(3), off)},
		"LeavesBeforeItIsListed":    {is: run(began), view: with(func(v *view) { v.placed, v.listed = false, false }), want: run(began, off)},
		"LeavesBeforeItAnswers":     {is: run(began, fell(6)), view: with(func(v *view) { v.placed, v.listed, v.contact = false, false, unsure }), want: run(began, fell(6), off)},
		"LeavesAsItWasLastSeen":     {is: run(began), view: with(func(v *view) { v.placed, v.listed = false, false }), seen: `{"active":1}`, want: run(began, done(0), off)},
		"LeavesAndNothingIsThere":   {is: run(began), view: with(func(v *view) { v.placed = false }), want: run(began, done(0), off)},
		"LeavesAndIsLost":           {is: run(began), view: with(func(v *view) { v.placed, v.listed, v.contact = false, false, lost }), want: run(began, done(0), off)},
		"OfAnEarlierVersion":        {is: run(began, fell(6), earlier), view: there(job(6, 3, "")), want: run(began, fell(6), earlier)},
		"AnotherClusterOfTheName":   {is: run(began, fell(6)), view: with(func(v *view) { v.id = "other" }), seen: `{"succeeded":2}`, want: run(began, fell(6), done(2), off)},
		"CompleteInAnotherCluster":  {is: run(complete, fell(6)), view: with(func(v *view) { v.id = "other" }), want: run(complete, fell(6), off)},
		"WhatDoesNotAnswerIsTheOne": {is: run(began, fell(6)), view: with(func(v *view) { v.id, v.contact, v.listed = "", lost, false }), want: run(began, fell(6))},
	} {
		t.Run(name, func(t *testing.T) {
			template := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"uid": "t"}, "spec": map[string]any{"completions": int64(10), "parallelism": int64(2)},
			}}
			b := &workv1alpha2.ResourceBinding{Status: workv1alpha2.BindingStatus{Runs: tc.is}}
			b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "batch/v1", Kind: "Job"}
			b.Spec.ReplicaSchedulingType = policyv1alpha1.Divided
			if tc.view.placed {
				b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "oak"}}
			}
			if tc.seen != "" {
				b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{{ClusterName: "oak", Status: &runtime.RawExtension{Raw: []byte(tc.seen)}}}
			}
			got := runs(b, template, []view{tc.view}, func(string) bool { return true }, later.Time)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("runs (-want +got):\n%s", diff)
			}
		})
	}
}
