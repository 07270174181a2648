package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
)

// summary is a status without the words and times of its conditions.
type summary struct {
	Items      map[string]itemSummary
	Conditions map[string]string // type: status/reason
}

type itemSummary struct {
	Applied bool
	Health  workv1alpha2.ResourceHealth
	Status  string
}

func summarise(s workv1alpha2.BindingStatus) summary {
	out := summary{Items: map[string]itemSummary{}, Conditions: map[string]string{}}
	for _, i := range s.AggregatedStatus {
		item := itemSummary{Applied: i.Applied, Health: i.Health}
		if i.Status != nil {
			item.Status = string(i.Status.Raw)
		}
		out.Items[i.ClusterName] = item
	}
	for _, c := range s.Conditions {
		out.Conditions[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return out
}

func TestCompute(t *testing.T) {
	const generation = 2
	applied := &apply.Result{Applied: true, Reason: workv1alpha2.ReasonFullyApplied, Generation: generation}
	result := func(reason string) *apply.Result {
		return &apply.Result{Reason: reason, Message: "because", Generation: generation}
	}
	object := func(h workv1alpha2.ResourceHealth) *mirror.Object {
		return &mirror.Object{Health: h, Status: map[string]any{"replicas": int64(1)}}
	}
	good := func(cluster string) view {
		return view{cluster: cluster, placed: true, contact: answers, result: applied, listed: true, object: object(workv1alpha2.ResourceHealthy)}
	}
	change := func(v view, f func(*view)) view { f(&v); return v }
	outcome := &placement.Outcome{Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Generation: generation}
	healthyItem := itemSummary{Applied: true, Health: workv1alpha2.ResourceHealthy, Status: `{"replicas":1}`}

	stored := workv1alpha2.BindingStatus{
		SchedulerObservedGeneration: generation,
		AggregatedStatus: []workv1alpha2.AggregatedStatusItem{
			{ClusterName: "a", Applied: true, Health: workv1alpha2.ResourceHealthy, Status: &runtime.RawExtension{Raw: []byte(`{"replicas":1}`)}},
			{ClusterName: "b", Applied: true, Health: workv1alpha2.ResourceHealthy, Status: &runtime.RawExtension{Raw: []byte(`{"replicas":1}`)}},
		},
		Conditions: []metav1.Condition{
			{Type: workv1alpha2.ConditionScheduled, Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, ObservedGeneration: generation},
			{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonFullyApplied, ObservedGeneration: generation},
			{Type: workv1alpha2.ConditionHealthy, Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonHealthy, ObservedGeneration: generation},
		},
	}
	fine := map[string]string{"Scheduled": "True/Scheduled", "FullyApplied": "True/FullyApplied", "Healthy": "True/Healthy"}
	conditions := func(fullyApplied, healthy string) map[string]string {
		return map[string]string{"Scheduled": "True/Scheduled", "FullyApplied": fullyApplied, "Healthy": healthy}
	}

	cases := map[string]struct {
		stored  workv1alpha2.BindingStatus
		outcome *placement.Outcome
		views   []view
		want    summary
	}{
		"EverythingIsWell": {
			outcome: outcome, views: []view{good("b"), good("a")},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": healthyItem}, Conditions: fine},
		},
		"NothingIsKnownAfterARestart": {
			stored: stored, views: []view{{cluster: "a", placed: true}, {cluster: "b", placed: true}},
			want: summarise(stored),
		},
		"OneClusterHasAnsweredAfterARestart": {
			stored: stored, outcome: outcome, views: []view{good("a"), {cluster: "b", placed: true}},
			want: summarise(stored),
		},
		"ARefusalAfterARestartWaitsForTheOtherCluster": {
			stored: stored, outcome: outcome,
			views: []view{change(good("a"), func(v *view) { v.result = result(workv1alpha2.ReasonRejected) }), {cluster: "b", placed: true}},
			want: summary{Items: map[string]itemSummary{
				"a": {Health: workv1alpha2.ResourceHealthy, Status: `{"replicas":1}`}, "b": healthyItem,
			}, Conditions: fine},
		},
		"AClusterHasNotAnsweredYet": {
			outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) { v.result, v.object = nil, nil })},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": {}}, Conditions: conditions("False/Applying", "False/Progressing")},
		},
		"AnAnswerToAnEarlierSpecCountsAsNone": {
			outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) {
				v.result = &apply.Result{Applied: true, Generation: generation - 1}
			})},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": healthyItem}, Conditions: conditions("False/Applying", "True/Healthy")},
		},
		"ConflictIsToldBeforeRejection": {
			outcome: outcome, views: []view{
				change(good("a"), func(v *view) { v.result, v.object = result(workv1alpha2.ReasonRejected), nil }),
				change(good("b"), func(v *view) { v.result, v.object = result(workv1alpha2.ReasonConflict), nil }),
			},
			want: summary{Items: map[string]itemSummary{"a": {}, "b": {}}, Conditions: conditions("False/Conflict", "False/Progressing")},
		},
		"UnhealthyIsToldBeforeProgressing": {
			outcome: outcome, views: []view{
				change(good("a"), func(v *view) { v.object = object(workv1alpha2.ResourceUnknown) }),
				change(good("b"), func(v *view) { v.object = object(workv1alpha2.ResourceUnhealthy) }),
			},
			want: summary{Items: map[string]itemSummary{
				"a": {Applied: true, Health: workv1alpha2.ResourceUnknown, Status: `{"replicas":1}`},
				"b": {Applied: true, Health: workv1alpha2.ResourceUnhealthy, Status: `{"replicas":1}`},
			}, Conditions: conditions("True/FullyApplied", "False/Unhealthy")},
		},
		"ALostClusterKeepsItsLastStatus": {
			stored: stored, outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) {
				v.contact, v.listed, v.object = lost, false, nil
			})},
			want: summary{Items: map[string]itemSummary{
				"a": healthyItem,
				"b": {Applied: true, Health: workv1alpha2.ResourceUnknown, Status: `{"replicas":1}`},
			}, Conditions: conditions("True/FullyApplied", "Unknown/ClusterUnreachable")},
		},
		"ALostClusterThatWasNotAskedYet": {
			outcome: outcome, views: []view{good("a"), {cluster: "b", placed: true, contact: lost}},
			want: summary{
				Items:      map[string]itemSummary{"a": healthyItem, "b": {Health: workv1alpha2.ResourceUnknown}},
				Conditions: conditions("False/ClusterUnreachable", "Unknown/ClusterUnreachable"),
			},
		},
		"AnObjectThatIsGoneHasNoStatus": {
			stored: stored, outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) { v.object = nil })},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": {Applied: true}}, Conditions: conditions("True/FullyApplied", "False/Progressing")},
		},
		"AClusterThatIsNotNamedIsKeptButDoesNotCount": {
			stored: stored, outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) {
				v.placed, v.result, v.object = false, nil, object(workv1alpha2.ResourceUnhealthy)
			})},
			want: summary{Items: map[string]itemSummary{
				"a": healthyItem,
				"b": {Applied: true, Health: workv1alpha2.ResourceUnhealthy, Status: `{"replicas":1}`},
			}, Conditions: fine},
		},
		"NoClusterFits": {
			outcome: &placement.Outcome{Status: metav1.ConditionFalse, Reason: workv1alpha2.ReasonNoClusterFits, Generation: generation},
			want: summary{Items: map[string]itemSummary{}, Conditions: map[string]string{
				"Scheduled": "False/NoClusterFits", "FullyApplied": "False/NoClusterFits", "Healthy": "False/NoClusterFits",
			}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{Status: tc.stored}
			b.Generation = generation
			got, err := compute(b, tc.outcome, tc.views, time.Unix(1000, 0))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, summarise(got)); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			b.Status = got
			again, err := compute(b, tc.outcome, tc.views, time.Unix(2000, 0))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("computing again changes the status:\n%s", diff)
			}
		})
	}
}

func TestRemoval(t *testing.T) {
	for name, tc := range map[string]struct {
		views        []view
		reason, says string
	}{
		"Everywhere":  {nil, "", ""},
		"NotKnownYet": {[]view{{cluster: "a"}}, "", ""},
		"Busy":        {[]view{{cluster: "b", contact: answers}, {cluster: "a", contact: answers}}, workv1alpha2.ReasonRemoving, "a, b"},
		"Lost":        {[]view{{cluster: "b", contact: lost}, {cluster: "a", contact: answers}}, workv1alpha2.ReasonClusterUnreachable, ": b"},
	} {
		t.Run(name, func(t *testing.T) {
			got := removal(tc.views)
			if got == nil {
				got = &metav1.Condition{}
			}
			if got.Reason != tc.reason || !strings.HasSuffix(got.Message, tc.says) {
				t.Errorf("removal is %s: %q, want %s: …%q", got.Reason, got.Message, tc.reason, tc.says)
			}
		})
	}
}

func TestCut(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		n    int
		want string
	}{
		"Short":         {"short", 10, "short"},
		"Long":          {strings.Repeat("x", 20), 10, strings.Repeat("x", 7) + "…"},
		"InACharacter":  {"ääääää", 8, "ää…"},
		"ExactlyEnough": {"0123456789", 10, "0123456789"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cut(tc.text, tc.n); got != tc.want {
				t.Errorf("cut(%q, %d) = %q, want %q", tc.text, tc.n, got, tc.want)
			}
		})
	}
}
