package apply

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

// Work that ended is not run again, no copy is created before its mark is written, and an
// unknown outcome does not count as no run.
func TestPlanOfWork(t *testing.T) {
	absent := Seen{Reachable: true, Listed: true, At: presence.Absent}
	const (
		applied = workv1alpha2.ReasonFullyApplied
		request = "b/2"
	)
	run := func(phase workv1alpha2.RunPhase, change ...func(*Work)) Wanted {
		w := Work{Ends: true, Mark: &workv1alpha2.Run{ClusterName: "oak", TemplateUID: "t", Phase: phase, CopyUID: "u"}}
		for _, f := range change {
			f(&w)
		}
		return placeWanted(func(wanted *Wanted) { wanted.Work = w })
	}
	first := func(change ...func(*Work)) Wanted {
		return run("", append([]func(*Work){func(w *Work) { w.Mark = nil }}, change...)...)
	}
	asked := func(w *Work) { w.Request = request }
	followed := func(w *Work) { w.Request, w.Mark.Rerun = request, request }
	off := func(w *Work) { w.Mark.Removed = true }
	older := func(w *Work) { w.Older = true }
	uncounted := func(w *Work) { w.Uncounted = "elm" }
	finished := func(w *Work) { w.Finished = workv1alpha2.RunComplete }
	applies := Known{Now: now, Digest: "new", Fields: 1, Applied: true, RestoreChecked: true}
	adopted := func(c *Copy) { c.Origin = workv1alpha2.OriginAdopted }
	for name, tc := range map[string]struct {
		wanted Wanted
		seen   Seen
		known  Known
		want   []string
	}{
		"BeginsBeforeItIsMade":             {first(), absent, Known{}, []string{"Begin"}},
		"UnfinishedAndOlderThanTheProcess": {run(workv1alpha2.RunBegan, older), absent, Known{Fate: FateUnfinished}, []string{"Retry after 500ms"}},
		"UnfinishedAndRestored":            {run(workv1alpha2.RunBegan), absent, Known{Fate: FateUnfinished, Restored: true, RestoreChecked: true}, []string{workv1alpha2.ReasonHubRestored}},
		"AskedWhileTheMarkIsBehind": {
			run(workv1alpha2.RunBegan, asked), at(ourCopy(func(c *Copy) { c.UID, c.Ended = "u", workv1alpha2.RunComplete })), applies, []string{"Delete a"},
		},
		"BegunByThisProcess":              {run(workv1alpha2.RunBegan), absent, Known{Fate: FateNotMade}, []string{"Create"}},
		"BegunByAnotherProcess":           {run(workv1alpha2.RunBegan), absent, Known{}, []string{"Recall"}},
		"AnswerLost":                      {run(workv1alpha2.RunBegan), absent, Known{Unsure: true}, []string{"Recall"}},
		"NobodyRemembers":                 {run(workv1alpha2.RunBegan), absent, Known{Fate: FateLost}, []string{workv1alpha2.ReasonRunUnknown}},
		"DeletedWhileItRan":               {run(workv1alpha2.RunBegan), absent, Known{Fate: FateUnfinished}, []string{"Begin"}},
		"EndedAndNotWrittenYet":           {run(workv1alpha2.RunBegan), absent, Known{Fate: FateEnded}, []string{applied}},
		"Complete":                        {run(workv1alpha2.RunComplete), absent, Known{}, []string{applied}},
		"CompleteAndUnsure":               {run(workv1alpha2.RunComplete), absent, Known{Unsure: true}, []string{applied}},
		"Failed":                          {run(workv1alpha2.RunFailed), absent, Known{}, []string{applied}},
		"CompleteBeforeItMovedAway":       {run(workv1alpha2.RunComplete, off), absent, Known{}, []string{applied}},
		"MovedAwayUnfinished":             {run(workv1alpha2.RunBegan, off), absent, Known{}, []string{"Begin"}},
		"NotListed":                       {run(workv1alpha2.RunBegan), Seen{Reachable: true, At: presence.Absent}, Known{}, []string{"Await"}},
		"NotKnown":                        {first(), Seen{Reachable: true, Listed: true}, Known{}, []string{"Await"}},
		"AddedToWhatIsComplete":           {first(finished), absent, Known{}, []string{applied}},
		"Skipped":                         {run(workv1alpha2.RunSkipped), absent, Known{}, []string{applied}},
		"BegunWhileOthersFailed":          {run(workv1alpha2.RunBegan, finished), absent, Known{Fate: FateNotMade}, []string{"Create"}},
		"CustomKindThatEnded":             {run(workv1alpha2.RunComplete, func(w *Work) { w.Ends = false }), absent, Known{}, []string{applied}},
		"CustomKindOfWhichNothingIsKnown": {first(func(w *Work) { w.Ends = false }), absent, Known{}, []string{"Create"}},
		"Refused":                         {run(workv1alpha2.RunRefused), absent, Known{}, []string{"Begin"}},
		"RefusedJustNow":                  {run(workv1alpha2.RunRefused), absent, Known{Now: now, Refused: "new", RetryAt: now.Add(time.Minute)}, []string{"Retry after 1m0s"}},
		"OlderThanTheProcess":             {first(older), absent, Known{}, []string{"Retry after 500ms"}},
		"OlderThanTheProcessAndChecked":   {first(older), absent, Known{RestoreChecked: true}, []string{"Begin"}},
		"HubRestored":                     {first(), absent, Known{Restored: true, RestoreChecked: true}, []string{workv1alpha2.ReasonHubRestored}},
		"LostAndComplete":                 {run(workv1alpha2.RunComplete), Seen{Lost: true}, Known{}, []string{applied}},
		"LostAndRunning":                  {run(workv1alpha2.RunBegan), Seen{Lost: true}, Known{}, []string{workv1alpha2.ReasonClusterUnreachable}},
		"RerunOfWhatIsGone":               {run(workv1alpha2.RunComplete, asked), absent, Known{}, []string{"Begin"}},
		"RerunOfWhatIsThere":              {run(workv1alpha2.RunComplete, asked), at(ourCopy()), applies, []string{"Delete a"}},
		"RerunBeforeTheRestoreCheck":      {run(workv1alpha2.RunComplete, asked), at(ourCopy()), Known{Now: now}, []string{"Retry after 500ms"}},
		"RerunOfWhatRuns":                 {run(workv1alpha2.RunBegan, asked), at(ourCopy()), applies, []string{"Begin"}},
		"RerunOfWhatWasThereBefore":       {run(workv1alpha2.RunComplete, asked), at(ourCopy(adopted)), applies, []string{workv1alpha2.ReasonConflict}},
		"RerunFollowed":                   {run(workv1alpha2.RunComplete, followed), at(ourCopy()), applies, []string{applied}},
		"RerunFollowedAndGone":            {run(workv1alpha2.RunComplete, followed), absent, Known{}, []string{applied}},
		"HowManyOthersHaveIsNotKnown":     {first(uncounted), absent, Known{}, []string{workv1alpha2.ReasonRunUnknown, "Retry"}},
		"MadeBeforeThatWasAsked":          {run(workv1alpha2.RunBegan, uncounted), absent, Known{Fate: FateNotMade}, []string{"Create"}},
		"Suspended": {func() Wanted {
			w := first()
			w.Suspended = workv1alpha2.ReasonSuspended
			return w
		}(), absent, Known{}, []string{workv1alpha2.ReasonSuspended}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, said(Plan(tc.wanted, tc.seen, tc.known))); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// A request to run again is for one binding. A binding that replaces it does not follow the
// request.
func TestRequestsAreToOneBinding(t *testing.T) {
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{UID: "second"}}
	for value, want := range map[string]string{"": "", "first/1": "", "second": "", "second/1": "second/1"} {
		source := &unstructured.Unstructured{Object: map[string]any{}}
		source.SetAnnotations(map[string]string{workv1alpha2.RerunAnnotation: value})
		if got := request(b, source); got != want {
			t.Errorf("%q asks for %q, want %q", value, got, want)
		}
	}
}

// All clusters together run no more completions than requested, after any change of the shares.
// If the completions of a cluster are unknown, no work begins in the others.
func TestCompletionsLeft(t *testing.T) {
	const began, complete, failed = workv1alpha2.RunBegan, workv1alpha2.RunComplete, workv1alpha2.RunFailed
	source := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "j", "uid": "t"},
		"spec": map[string]any{"parallelism": int64(10), "completions": int64(10)},
	}}
	taken := func(cluster string, phase workv1alpha2.RunPhase, completions, succeeded int64, off bool, change ...func(*workv1alpha2.Run)) workv1alpha2.Run {
		r := workv1alpha2.Run{
			ClusterName: cluster, ClusterID: "id-" + cluster, TemplateUID: "t", CopyUID: "u", Phase: phase, Completions: &completions, Succeeded: &succeeded, Removed: off,
		}
		for _, f := range change {
			f(&r)
		}
		return r
	}
	uncounted := func(r *workv1alpha2.Run) { r.Completions, r.Succeeded = nil, nil }
	elsewhere := func(r *workv1alpha2.Run) { r.ClusterID = "another" }
	of := func(request string) func(*workv1alpha2.Run) { return func(r *workv1alpha2.Run) { r.Rerun = request } }
	job := func(template types.UID, completions *int64) mirror.Object {
		return mirror.Object{Cluster: "a", Name: "j", UID: "u", Source: mark.Key("k").Sign(mark.Source{Template: template}), Completions: completions}
	}
	ended := func(o mirror.Object, phase workv1alpha2.RunPhase, succeeded int64) mirror.Object {
		o.Ended, o.Status = phase, map[string]any{"succeeded": succeeded}
		return o
	}
	for name, tc := range map[string]struct {
		runs    []workv1alpha2.Run
		copies  []mirror.Object
		seen    string // status of the binding in a
		request string
		want    int64
		unknown string
		before  int64
	}{
		"First":                {want: 5},
		"OthersRunTheirs":      {runs: []workv1alpha2.Run{taken("a", began, 5, 0, false)}, want: 5},
		"ItsShareGrew":         {runs: []workv1alpha2.Run{taken("a", began, 8, 0, false)}, want: 2},
		"OthersRunAllOfThem":   {runs: []workv1alpha2.Run{taken("a", complete, 10, 10, false)}},
		"SucceededWhereItLeft": {runs: []workv1alpha2.Run{taken("a", began, 10, 7, true)}, want: 3},
		"FailedElsewhere":      {runs: []workv1alpha2.Run{taken("a", failed, 10, 9, false)}, want: 1},
		"CompleteWhereItLeft":  {runs: []workv1alpha2.Run{taken("a", complete, 6, 6, true)}, want: 4},
		"SkippedElsewhere":     {runs: []workv1alpha2.Run{taken("a", workv1alpha2.RunSkipped, 0, 0, false, uncounted)}, want: 5},
		"RefusedElsewhere":     {runs: []workv1alpha2.Run{taken("a", workv1alpha2.RunRefused, 0, 0, false, uncounted)}, want: 5},
		"OfAnotherTemplate":    {runs: []workv1alpha2.Run{taken("a", began, 10, 0, false, func(r *workv1alpha2.Run) { r.TemplateUID = "o" })}, want: 5},
		"Uncounted":            {runs: []workv1alpha2.Run{taken("a", began, 0, 0, false, uncounted)}, want: 5, unknown: "a"},
		"UncountedAndComplete": {runs: []workv1alpha2.Run{taken("a", complete, 0, 0, false, uncounted)}, want: 5, unknown: "a"},
		"UncountedAndFailed":   {runs: []workv1alpha2.Run{taken("a", failed, 0, 0, false, uncounted)}, want: 5, unknown: "a"},
		"TheCopySaysIt":        {runs: []workv1alpha2.Run{taken("a", began, 0, 0, false, uncounted)}, copies: []mirror.Object{job("t", new(int64(8)))}, want: 2},
		"TheFailedCopySaysIt": {
			runs: []workv1alpha2.Run{taken("a", failed, 0, 0, false, uncounted)}, copies: []mirror.Object{ended(job("t", new(int64(10))), failed, 9)}, want: 1,
		},
		"ACopyWithoutAMark":            {copies: []mirror.Object{job("t", new(int64(8)))}, want: 2},
		"AFailedCopyWithoutAMark":      {copies: []mirror.Object{ended(job("t", new(int64(10))), failed, 9)}, want: 1},
		"ACopyOfAnotherTemplate":       {copies: []mirror.Object{job("o", new(int64(8)))}, want: 5},
		"SeenBeforeThereWereMarks":     {seen: `{"active":1}`, want: 5, unknown: "a"},
		"NothingIsSeen":                {seen: "", want: 5},
		"OfAnEarlierRequest":           {runs: []workv1alpha2.Run{taken("a", complete, 10, 10, false, of("b/1"))}, request: "b/2", want: 5},
		"RunsForAnEarlierRequest":      {runs: []workv1alpha2.Run{taken("a", began, 10, 0, false, of("b/1"))}, request: "b/2"},
		"TheRequestWasTakenBack":       {runs: []workv1alpha2.Run{taken("a", complete, 10, 10, false, of("b/1"))}},
		"ItsOwnEarlierRunIsNoMore":     {runs: []workv1alpha2.Run{taken("b", began, 5, 3, false)}, want: 5},
		"CameBack":                     {runs: []workv1alpha2.Run{taken("a", began, 5, 0, false), taken("b", began, 5, 3, true)}, want: 2, before: 3},
		"CameBackElsewhere":            {runs: []workv1alpha2.Run{taken("a", began, 2, 0, false, func(r *workv1alpha2.Run) { r.SucceededBefore = new(int64(4)) })}, want: 4},
		"InAnotherClusterOfTheName":    {runs: []workv1alpha2.Run{taken("b", complete, 7, 7, false, elsewhere)}, want: 3, before: 7},
		"RanInAnotherClusterOfTheSame": {runs: []workv1alpha2.Run{taken("b", began, 7, 6, false, elsewhere)}, want: 4, before: 6},
	} {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{Spec: workv1alpha2.BindingSpec{
				Resource:              workv1alpha2.ObjectReference{Name: "j"},
				ReplicaSchedulingType: policyv1alpha1.Divided,
				Clusters:              []workv1alpha2.TargetCluster{{Name: "a", Replicas: new(int32(5))}, {Name: "b", Replicas: new(int32(5))}},
			}}
			b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{{ClusterName: "a"}}
			if tc.seen != "" {
				b.Status.AggregatedStatus[0].Status = &runtime.RawExtension{Raw: []byte(tc.seen)}
			}
			got := completionsLeft(b, tc.runs, tc.copies, source, "b", "id-b", tc.request)
			want := &share{left: tc.want, unknown: tc.unknown}
			if tc.before != 0 {
				want.before = &tc.before
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(share{})); diff != "" {
				t.Errorf("share (-want +got):\n%s", diff)
			}
		})
	}
}

// The beginning of work is recorded only if the binding still has the mark that the plan knew.
func TestBeginningComparesAndSets(t *testing.T) {
	complete := workv1alpha2.Run{ClusterName: "oak", TemplateUID: "t", Phase: workv1alpha2.RunComplete, CopyUID: "u"}
	began := workv1alpha2.Run{ClusterName: "oak", TemplateUID: "t", Phase: workv1alpha2.RunBegan, CopyUID: "u"}
	for name, tc := range map[string]struct {
		is     []workv1alpha2.Run
		before *workv1alpha2.Run
		copied mirror.Object
		want   *workv1alpha2.Run
	}{
		"First":              {nil, nil, mirror.Object{}, &workv1alpha2.Run{Phase: workv1alpha2.RunBegan}},
		"ItEndedMeanwhile":   {[]workv1alpha2.Run{complete}, &began, mirror.Object{}, nil},
		"BegunMeanwhile":     {[]workv1alpha2.Run{began}, nil, mirror.Object{}, nil},
		"Again":              {[]workv1alpha2.Run{complete}, &complete, mirror.Object{}, &workv1alpha2.Run{Phase: workv1alpha2.RunBegan, ReplacedUID: "u", Rerun: "b/1"}},
		"ACopyThatIsThere":   {nil, nil, mirror.Object{UID: "v"}, &workv1alpha2.Run{Phase: workv1alpha2.RunBegan, CopyUID: "v"}},
		"ACopyThatHasEnded":  {nil, nil, mirror.Object{UID: "v", Ended: workv1alpha2.RunFailed}, &workv1alpha2.Run{Phase: workv1alpha2.RunFailed, CopyUID: "v"}},
		"WhatRunsIsWhatAsks": {[]workv1alpha2.Run{began}, &began, mirror.Object{UID: "u"}, &workv1alpha2.Run{Phase: workv1alpha2.RunBegan, CopyUID: "u", Rerun: "b/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{Status: workv1alpha2.BindingStatus{Runs: tc.is}}
			n := beginning{cluster: "oak", template: "t", before: tc.before, request: "", copied: tc.copied}
			if tc.want != nil {
				tc.want.ClusterName, tc.want.TemplateUID = "oak", "t"
				n.request = tc.want.Rerun
			}
			got := n.mark(b)
			if got != nil {
				got.Time = metav1.Time{}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("mark (-want +got):\n%s", diff)
			}
		})
	}
}

// lastCopy recognizes the copy of a mark in what a cluster remembers, even if somebody removed
// our mark before the copy was deleted. The search for the copy always ends for this reason.
func TestLastCopy(t *testing.T) {
	past := func(kind watch.EventType, uid, binding, phase string) manifest.Past {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "status": map[string]any{"phase": phase}}}
		o.SetUID(types.UID(uid))
		if binding != "" {
			o.SetLabels(map[string]string{workv1alpha2.BindingLabel: binding})
		}
		return manifest.Past{Type: kind, Object: o}
	}
	unknown, known := workv1alpha2.Run{ReplacedUID: "old"}, workv1alpha2.Run{CopyUID: "u"}
	for name, tc := range map[string]struct {
		past  []manifest.Past
		mark  workv1alpha2.Run
		gone  string // "": there is none
		ended workv1alpha2.RunPhase
	}{
		"Nothing":                 {nil, unknown, "", ""},
		"OfAnotherBinding":        {[]manifest.Past{past(watch.Added, "u", "other", "Running")}, unknown, "", ""},
		"TheOneBefore":            {[]manifest.Past{past(watch.Deleted, "old", "b", "Failed")}, unknown, "", ""},
		"Runs":                    {[]manifest.Past{past(watch.Added, "u", "b", "Running")}, unknown, "u false", ""},
		"Deleted":                 {[]manifest.Past{past(watch.Added, "u", "b", "Running"), past(watch.Deleted, "u", "b", "Running")}, unknown, "u true", ""},
		"EndedAndDeleted":         {[]manifest.Past{past(watch.Modified, "u", "b", "Succeeded"), past(watch.Deleted, "u", "b", "Running")}, unknown, "u true", workv1alpha2.RunComplete},
		"WithoutOurMarkThen":      {[]manifest.Past{past(watch.Added, "u", "b", "Running"), past(watch.Modified, "u", "", "Running"), past(watch.Deleted, "u", "", "Failed")}, unknown, "u true", workv1alpha2.RunFailed},
		"WithoutOurMarkAlways":    {[]manifest.Past{past(watch.Modified, "u", "", "Running"), past(watch.Deleted, "u", "", "Running")}, known, "u true", ""},
		"WithoutOurMarkAndOthers": {[]manifest.Past{past(watch.Modified, "v", "", "Running"), past(watch.Deleted, "v", "", "Running")}, unknown, "", ""},
		"WithASuccessor":          {[]manifest.Past{past(watch.Deleted, "u", "b", "Failed"), past(watch.Added, "v", "b", "Running")}, unknown, "v false", ""},
	} {
		t.Run(name, func(t *testing.T) {
			last, ended := lastCopy(tc.past, "b", &tc.mark)
			got := ""
			if last != nil {
				got = fmt.Sprint(last.object.GetUID(), " ", last.gone)
			}
			if got != tc.gone || ended != tc.ended {
				t.Errorf("the last copy is %q, ended %q; want %q, %q", got, ended, tc.gone, tc.ended)
			}
		})
	}
}

// TestWhatEndedHoldsNoMove: a move does not wait for work that ended in the cluster to which it
// moves. A Job that failed there, or was deleted there after it completed, never becomes
// available.
func TestWhatEndedHoldsNoMove(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	f.join("elm", testenv.Kubeconfig(elmServer))
	oak, elm := f.client(testenv.Config(oakServer)), f.client(testenv.Config(elmServer))
	for name, tc := range map[string]struct {
		phase workv1alpha2.RunPhase // of the work in elm
		late  bool                  // the binding records that only after the move
	}{
		"Complete":        {phase: workv1alpha2.RunComplete},
		"Failed":          {phase: workv1alpha2.RunFailed},
		"FailedMeanwhile": {phase: workv1alpha2.RunFailed, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			template := f.manifestOf(f.adoptable(oak), `{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: NAMESPACE},
				spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`)
			b := f.bind(template, nil, "oak", "elm")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
			leaves, ends := f.live(oak, template), f.live(elm, template)
			mark := func() {
				run := func(cluster string, o client.Object, phase workv1alpha2.RunPhase) map[string]any {
					return map[string]any{"clusterName": cluster, "phase": phase, "time": "2026-01-01T00:00:00Z", "templateUID": template.GetUID(), "copyUID": o.GetUID()}
				}
				f.patchStatus(b, map[string]any{"runs": []map[string]any{run("elm", ends, tc.phase), run("oak", leaves, workv1alpha2.RunBegan)}})
				f.eventually("the mark is known", func() error {
					if now, ok := f.applier.bindings.ByUID(b.UID); !ok || binding.Ended(now.Status.Runs) != 1 {
						return errors.New("it is not")
					}
					return nil
				})
			}
			if !tc.late {
				mark()
			}
			if tc.phase == workv1alpha2.RunFailed {
				condition := func(kind string) any {
					return map[string]any{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastProbeTime": "2026-01-01T00:00:00Z"}
				}
				ends.Object["status"] = map[string]any{
					"failed": int64(1), "startTime": "2026-01-01T00:00:00Z", "conditions": []any{condition("FailureTarget"), condition("Failed")},
				}
				f.must(elm.Status().Update(t.Context(), ends))
				f.eventually("its failure is known", func() error {
					if placed := f.applier.mirror.PlacedOf(b.UID, "elm"); len(placed) != 1 || placed[0].Available > 0 {
						return fmt.Errorf("elm has %+v", placed)
					}
					return nil
				})
			} else {
				f.must(elm.Delete(t.Context(), ends, client.PropagationPolicy(metav1.DeletePropagationBackground)))
				f.eventually("its end is known", func() error { return f.placed(b, "elm", 0) })
			}
			f.move(b, "elm")
			if tc.late {
				f.eventually("what moves waits", func() error {
					now, ok := f.applier.bindings.ByUID(b.UID)
					if !ok || len(now.Spec.GracefulEvictionTasks) == 0 {
						return errors.New("it is not known")
					}
					oak := &task{binding: now}
					oak.queue, _ = f.applier.queue("oak")
					if oak.want(t.Context(), f.applier.revision(now)); !oak.wanted.Held {
						return errors.New("it does not")
					}
					return nil
				})
				mark()
			}
			f.gone(oak, leaves)
			f.must(f.hub.Delete(t.Context(), b))
			f.gone(f.hub, b)
		})
	}
	f.unjoin("oak")
	f.unjoin("elm")
}
