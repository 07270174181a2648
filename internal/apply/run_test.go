package apply

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// What ended is not run again, nothing is created before its mark, and what is not known is not taken for what never was.
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
	off := func(w *Work) { w.Mark.Off = true }
	older := func(w *Work) { w.Older = true }
	finished := func(w *Work) { w.Finished = workv1alpha2.RunComplete }
	applies := Known{Now: now, Digest: "new", Fields: 1, Applied: true, Surveyed: true}
	adopted := func(c *Copy) { c.Origin = workv1alpha2.OriginAdopted }
	for name, tc := range map[string]struct {
		wanted Wanted
		seen   Seen
		known  Known
		want   []string
	}{
		"BeginsBeforeItIsMade":             {first(), absent, Known{}, []string{"Begin"}},
		"UnfinishedAndOlderThanTheProcess": {run(workv1alpha2.RunBegan, older), absent, Known{Fate: FateUnfinished}, []string{"Retry after 500ms"}},
		"UnfinishedAndRestored":            {run(workv1alpha2.RunBegan), absent, Known{Fate: FateUnfinished, Restored: true, Surveyed: true}, []string{workv1alpha2.ReasonHubRestored}},
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
		"OlderThanTheProcessAndSurveyed":  {first(older), absent, Known{Surveyed: true}, []string{"Begin"}},
		"HubRestored":                     {first(), absent, Known{Restored: true, Surveyed: true}, []string{workv1alpha2.ReasonHubRestored}},
		"LostAndComplete":                 {run(workv1alpha2.RunComplete), Seen{Lost: true}, Known{}, []string{applied}},
		"LostAndRunning":                  {run(workv1alpha2.RunBegan), Seen{Lost: true}, Known{}, []string{workv1alpha2.ReasonClusterUnreachable}},
		"RerunOfWhatIsGone":               {run(workv1alpha2.RunComplete, asked), absent, Known{}, []string{"Begin"}},
		"RerunOfWhatIsThere":              {run(workv1alpha2.RunComplete, asked), at(ourCopy()), applies, []string{"Delete a"}},
		"RerunBeforeTheSurvey":            {run(workv1alpha2.RunComplete, asked), at(ourCopy()), Known{Now: now}, []string{"Retry after 500ms"}},
		"RerunOfWhatRuns":                 {run(workv1alpha2.RunBegan, asked), at(ourCopy()), applies, []string{"Begin"}},
		"RerunOfWhatWasThereBefore":       {run(workv1alpha2.RunComplete, asked), at(ourCopy(adopted)), applies, []string{workv1alpha2.ReasonConflict}},
		"RerunFollowed":                   {run(workv1alpha2.RunComplete, followed), at(ourCopy()), applies, []string{applied}},
		"RerunFollowedAndGone":            {run(workv1alpha2.RunComplete, followed), absent, Known{}, []string{applied}},
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

// A request to run again is to one binding: one that was made anew takes none to the one before.
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

// All clusters together run no more completions than are asked for, whatever became of the shares.
func TestCompletionsLeft(t *testing.T) {
	source := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "j", "uid": "t"},
		"spec": map[string]any{"parallelism": int64(10), "completions": int64(10)},
	}}
	taken := func(cluster string, phase workv1alpha2.RunPhase, completions, succeeded int64, off bool) workv1alpha2.Run {
		return workv1alpha2.Run{ClusterName: cluster, TemplateUID: "t", Phase: phase, Completions: &completions, Succeeded: &succeeded, Off: off}
	}
	for name, tc := range map[string]struct {
		runs []workv1alpha2.Run
		want int64
	}{
		"First":                {nil, 5},
		"OthersRunTheirs":      {[]workv1alpha2.Run{taken("a", workv1alpha2.RunBegan, 5, 0, false)}, 5},
		"ItsShareGrew":         {[]workv1alpha2.Run{taken("a", workv1alpha2.RunBegan, 8, 0, false)}, 2},
		"OthersRunAllOfThem":   {[]workv1alpha2.Run{taken("a", workv1alpha2.RunComplete, 10, 10, false)}, 0},
		"SucceededWhereItLeft": {[]workv1alpha2.Run{taken("a", workv1alpha2.RunBegan, 10, 7, true)}, 3},
		"FailedElsewhere":      {[]workv1alpha2.Run{taken("a", workv1alpha2.RunFailed, 10, 9, false)}, 1},
		"CompleteWhereItLeft":  {[]workv1alpha2.Run{taken("a", workv1alpha2.RunComplete, 6, 6, true)}, 4},
		"OfAnEarlierRequest": {[]workv1alpha2.Run{func() workv1alpha2.Run {
			r := taken("a", workv1alpha2.RunComplete, 10, 10, false)
			r.Rerun = "x"
			return r
		}()}, 5},
		"OfAnotherTemplate": {[]workv1alpha2.Run{func() workv1alpha2.Run {
			r := taken("a", workv1alpha2.RunBegan, 10, 0, false)
			r.TemplateUID = "o"
			return r
		}()}, 5},
		"ItsOwnEarlierRunIsNoMore": {[]workv1alpha2.Run{taken("b", workv1alpha2.RunBegan, 5, 0, false)}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{Spec: workv1alpha2.BindingSpec{
				ReplicaSchedulingType: policyv1alpha1.Divided,
				Clusters:              []workv1alpha2.TargetCluster{{Name: "a", Replicas: new(int32(5))}, {Name: "b", Replicas: new(int32(5))}},
			}}
			if got := completionsLeft(b, tc.runs, source, "b", ""); got == nil || *got != tc.want {
				t.Errorf("%v, want %d", got, tc.want)
			}
		})
	}
}

// Work that begins is written down only where the binding still says what the plan knew.
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

// The copy that a mark is about is recognized in what a cluster remembers, also when somebody took our mark off before it went: to look for it always comes to an end.
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
