package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
)

// summary is a status without the messages and times of its conditions.
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

// computed computes a status from views as the writer does: each view gets the item that b has.
func computed(
	t testing.TB, b *workv1alpha2.ResourceBinding, of subject, outcome *placement.Outcome, views []view, at time.Time,
) workv1alpha2.BindingStatus {
	t.Helper()
	views = slices.Clone(views)
	for i := range views {
		for j := range b.Status.AggregatedStatus {
			if b.Status.AggregatedStatus[j].ClusterName == views[i].cluster {
				views[i].recorded = &b.Status.AggregatedStatus[j]
			}
		}
	}
	states, err := judge(b, of, views)
	if err != nil {
		t.Fatal(err)
	}
	return compute(b, of, outcome, states, b.Status.Runs, at)
}

func TestCompute(t *testing.T) {
	const generation = 2
	now := subject{version: "uid/7/x", generation: 7, observed: 7}
	applied := &apply.Result{Applied: true, Reason: workv1alpha2.ReasonFullyApplied, Generation: generation, Template: now.version, Digest: "new"}
	result := func(reason string) *apply.Result {
		return &apply.Result{Reason: reason, Message: "because", Generation: generation, Template: now.version}
	}
	object := func(h workv1alpha2.ResourceHealth) *mirror.Object {
		return &mirror.Object{Health: h, Digest: "new", Status: map[string]any{"replicas": int64(1)}}
	}
	good := func(cluster string) view {
		return view{cluster: cluster, placed: true, contact: answers, result: applied, listed: true, object: object(workv1alpha2.ResourceHealthy)}
	}
	change := func(v view, f func(*view)) view { f(&v); return v }
	outcome := &placement.Outcome{Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Generation: generation}
	late := itemSummary{Health: workv1alpha2.ResourceHealthy, Status: `{"replicas":1}`}
	to := func(r apply.Result, of subject) *apply.Result { r.Template = of.version; return &r }
	healthyItem := itemSummary{Applied: true, Health: workv1alpha2.ResourceHealthy, Status: `{"replicas":1}`}

	stored := workv1alpha2.BindingStatus{
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

	// edited has other labels, for example. ahead is newer than its placement. unversioned has
	// a kind without generations, such as ConfigMap.
	edited := subject{version: "uid/7/y", generation: 7, observed: 7, edited: true}
	ahead := subject{version: "uid/8/x", generation: 8, observed: 7, edited: true}
	unversioned := subject{version: "uid/123/x"}

	cases := map[string]struct {
		of      *subject // nil: now
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
				v.result = &apply.Result{Applied: true, Generation: generation - 1, Template: now.version, Digest: "new"}
			})},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": late}, Conditions: conditions("False/Applying", "False/Progressing")},
		},
		"AnAnswerToAnEarlierTemplateCountsAsNone": {
			of: &edited, stored: stored, outcome: outcome, views: []view{
				change(good("a"), func(v *view) { v.result = to(*applied, edited) }), good("b"),
			},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": late}, Conditions: conditions("False/Applying", "False/Progressing")},
		},
		"AStaleAnswerCountsAsNone": { // an override changed
			stored: stored, outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) {
				r := *applied
				r.Stale = true
				v.result = &r
			})},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": late}, Conditions: conditions("False/Applying", "False/Progressing")},
		},
		"APlacementOfAnEarlierGenerationIsNoAnswer": {
			of: &ahead, stored: stored, outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) { v.result = to(*applied, ahead) })},
			want: summary{Items: map[string]itemSummary{"a": late, "b": late}, Conditions: conditions("False/Applying", "False/Progressing")},
		},
		"AnEditWhileAClusterIsUnreachableAndNothingIsKnown": {
			of: &edited, stored: stored, outcome: outcome,
			views: []view{change(good("a"), func(v *view) { v.result = to(*applied, edited) }), {cluster: "b", placed: true, contact: lost}},
			want: summary{Items: map[string]itemSummary{
				"a": healthyItem, "b": {Health: workv1alpha2.ResourceUnknown, Status: `{"replicas":1}`},
			}, Conditions: conditions("False/ClusterUnreachable", "Unknown/ClusterUnreachable")},
		},
		"ARestartBesideAClusterThatIsUnreachable": {
			stored: stored, outcome: outcome, views: []view{good("a"), {cluster: "b", placed: true, contact: lost}},
			want: summary{Items: map[string]itemSummary{
				"a": healthyItem, "b": {Applied: true, Health: workv1alpha2.ResourceUnknown, Status: `{"replicas":1}`},
			}, Conditions: conditions("True/FullyApplied", "Unknown/ClusterUnreachable")},
		},
		"ARestartOfWhichNobodyCanSayWhetherThereWasAnEdit": {
			of: &unversioned, stored: stored, outcome: outcome,
			views: []view{change(good("a"), func(v *view) { v.result = to(*applied, unversioned) }), {cluster: "b", placed: true, contact: lost}},
			want: summary{Items: map[string]itemSummary{
				"a": healthyItem, "b": {Health: workv1alpha2.ResourceUnknown, Status: `{"replicas":1}`},
			}, Conditions: conditions("False/ClusterUnreachable", "Unknown/ClusterUnreachable")},
		},
		"ATemplateThatIsNotListedYet": {
			of: &subject{}, stored: stored, outcome: outcome, views: []view{good("a"), good("b")}, want: summarise(stored),
		},
		"AnOldCopyIsNotHealthyForTheNewTemplate": {
			stored: stored, outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) {
				v.object = object(workv1alpha2.ResourceHealthy)
				v.object.Digest = "old"
			})},
			want: summary{Items: map[string]itemSummary{"a": healthyItem, "b": healthyItem}, Conditions: conditions("True/FullyApplied", "False/Progressing")},
		},
		"WhatCannotBeJudgedIsNotHealthy": {
			outcome: outcome, views: []view{good("a"), change(good("b"), func(v *view) { v.object = object(workv1alpha2.ResourceUnknown) })},
			want: summary{Items: map[string]itemSummary{
				"a": healthyItem, "b": {Applied: true, Health: workv1alpha2.ResourceUnknown, Status: `{"replicas":1}`},
			}, Conditions: conditions("True/FullyApplied", "Unknown/CannotJudge")},
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
			b.Generation, b.Spec.Resource.Generation = generation, now.generation
			of := now
			if tc.of != nil {
				of = *tc.of
			}
			if of.generation == 0 {
				b.Spec.Resource.Generation = 0
			}
			got := computed(t, b, of, tc.outcome, tc.views, time.Unix(1000, 0))
			if diff := cmp.Diff(tc.want, summarise(got)); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			b.Status = got
			again := computed(t, b, of, tc.outcome, tc.views, time.Unix(2000, 0))
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("computing again changes the status:\n%s", diff)
			}
		})
	}
}

// TestObservedGeneration: the status of the template is about its current generation only when
// every cluster has it.
func TestObservedGeneration(t *testing.T) {
	const generation = 1
	up := map[string]any{"observed": true, "available": true, "replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": int64(2), "availableReplicas": int64(2)}
	of := subject{version: "uid/6/x", generation: 6, observed: 5}
	copied := func(cluster, version, digest, has string) view {
		return view{
			cluster: cluster, placed: true, contact: answers, listed: true,
			result: &apply.Result{Applied: true, Reason: workv1alpha2.ReasonFullyApplied, Generation: generation, Template: version, Digest: digest},
			object: &mirror.Object{Cluster: cluster, Digest: has, Health: workv1alpha2.ResourceHealthy, Status: up, Replicas: 2},
		}
	}
	good := func(cluster string) view { return copied(cluster, of.version, "new", "new") }
	written := workv1alpha2.BindingStatus{
		AggregatedStatus: []workv1alpha2.AggregatedStatusItem{
			{ClusterName: "a", Applied: true, Health: workv1alpha2.ResourceHealthy, Status: &runtime.RawExtension{Raw: []byte(`{"observed":true,"available":true,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}`)}},
			{ClusterName: "b", Applied: true, Health: workv1alpha2.ResourceHealthy, Status: &runtime.RawExtension{Raw: []byte(`{"observed":true,"available":true,"replicas":2,"updatedReplicas":2,"readyReplicas":2,"availableReplicas":2}`)}},
		},
		Conditions: []metav1.Condition{{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionTrue, Reason: "FullyApplied", ObservedGeneration: generation}},
	}
	cases := map[string]struct {
		of       subject
		placedAs int64 // the template's generation in the binding
		views    []view
		// want is the observedGeneration; 0: the status of the template is not written.
		want, updated int64
		reason        string
	}{
		"EveryClusterHasIt":           {of, 6, []view{good("a"), good("b")}, 6, 4, "NewReplicaSetAvailable"},
		"ASlowMember":                 {of, 6, []view{good("a"), copied("b", "uid/5/x", "old", "old")}, 5, 2, "ReplicaSetUpdated"},
		"NotPlacedYet":                {of, 5, []view{copied("a", "uid/5/x", "old", "old"), copied("b", "uid/5/x", "old", "old")}, 5, 0, "ReplicaSetUpdated"},
		"NotSeenInTheMemberYet":       {of, 6, []view{good("a"), copied("b", of.version, "new", "old")}, 5, 2, "ReplicaSetUpdated"},
		"ARestart":                    {of, 6, []view{good("a"), {cluster: "b", placed: true}}, 0, 0, ""},
		"ARestartBesideALostCluster":  {of, 6, []view{good("a"), {cluster: "b", placed: true, contact: lost}}, 5, 2, "ReplicaSetUpdated"},
		"AndNothingWasEdited":         {subject{version: of.version, generation: 6, observed: 6}, 6, []view{good("a"), {cluster: "b", placed: true, contact: lost}}, 6, 4, "NewReplicaSetAvailable"},
		"AHungClusterThatHadItBefore": {of, 6, []view{good("a"), func() view { v := good("b"); v.contact = lost; return v }()}, 6, 4, "NewReplicaSetAvailable"},
		"ARestartBeforeTheListIsRead": {
			subject{version: of.version, generation: 6, observed: 6},
			6,
			[]view{good("a"), func() view { v := good("b"); v.object, v.listed = nil, false; return v }()},
			6, 4, "NewReplicaSetAvailable",
		},
		"AnEditBesideALostCluster": {
			subject{version: of.version, generation: 6, observed: 5, edited: true},
			6,
			[]view{good("a"), {cluster: "b", placed: true, contact: lost}},
			5, 2, "ReplicaSetUpdated",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{Status: written}
			b.Generation, b.Spec.Resource.Generation = generation, tc.placedAs
			b.Spec.Replicas, b.Spec.ReplicaSchedulingType = new(int32(4)), policyv1alpha1.Divided
			b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "a", Replicas: new(int32(2))}, {Name: "b", Replicas: new(int32(2))}}
			for i := range tc.views {
				tc.views[i].recorded = &written.AggregatedStatus[i]
			}
			states, err := judge(b, tc.of, tc.views)
			if err != nil {
				t.Fatal(err)
			}
			reports, ok := reported(tc.of, states)
			if !ok {
				if tc.want != 0 {
					t.Fatal("the template's status is left as it is")
				}
				return
			}
			template := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "generation": tc.of.generation},
				"spec": map[string]any{"replicas": int64(4)}, "status": map[string]any{"observedGeneration": tc.of.observed},
			}}
			status, _ := interpreter.Aggregate(template, placing(b), reports)
			reason := ""
			conditions, _, _ := unstructured.NestedSlice(status, "conditions")
			for _, c := range conditions {
				if c, _ := c.(map[string]any); c["type"] == "Progressing" {
					reason, _ = c["reason"].(string)
				}
			}
			updated, _ := status["updatedReplicas"].(int64)
			if status["observedGeneration"] != tc.want || updated != tc.updated || reason != tc.reason {
				t.Errorf("observedGeneration %v, updatedReplicas %d, %s; want %d, %d, %s",
					status["observedGeneration"], updated, reason, tc.want, tc.updated, tc.reason)
			}
		})
	}
}

func TestPlacing(t *testing.T) {
	b := &workv1alpha2.ResourceBinding{}
	b.Spec.Replicas, b.Spec.ReplicaSchedulingType = new(int32(40)), policyv1alpha1.Divided
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "a", Replicas: new(int32(14))}}
	if diff := cmp.Diff(interpreter.Placing{Missing: 26}, placing(b)); diff != "" {
		t.Errorf("divided (-want +got):\n%s", diff)
	}
	b.Spec.ReplicaSchedulingType = policyv1alpha1.Duplicated
	if diff := cmp.Diff(interpreter.Placing{Duplicated: true}, placing(b)); diff != "" {
		t.Errorf("duplicated (-want +got):\n%s", diff)
	}
}

// wide returns a binding of a Deployment that is applied and healthy in this number of
// clusters.
func wide(clusters int) (*workv1alpha2.ResourceBinding, subject, []view) {
	b := &workv1alpha2.ResourceBinding{}
	b.APIVersion, b.Kind = "work.orrery.dev/v1alpha2", "ResourceBinding"
	b.Namespace, b.Name, b.Generation = "shop", "frontend-deployment", 3
	b.UID = "5c2e1f4a-93b7-4a53-9e01-55aa0f7c6c11" // etcd does not store the resourceVersion
	b.CreationTimestamp = metav1.Unix(1000, 0)
	b.Finalizers = []string{workv1alpha2.Finalizer}
	b.Spec = workv1alpha2.BindingSpec{
		Resource: workv1alpha2.ObjectReference{
			APIVersion: "apps/v1", Kind: "Deployment", Name: "frontend", UID: "0f7c6c11-93b7-4a53-9e01-5c2e1f4a55aa", Generation: 12,
		},
		PolicyRef:     workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "shop"},
		PlacementHash: "0123456789abcdef", Replicas: new(int32(200)), ReplicaSchedulingType: policyv1alpha1.Divided,
	}
	of := subject{version: "uid/12/x", generation: 12, observed: 12}
	var views []view
	for i := range clusters {
		name := fmt.Sprintf("edge-%04d", i)
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: name, Replicas: new(int32(2))})
		views = append(views, view{
			cluster: name, placed: true, contact: answers, listed: true,
			result: &apply.Result{Applied: true, Generation: 3, Template: of.version, Digest: "d"},
			object: &mirror.Object{Digest: "d", Health: workv1alpha2.ResourceHealthy, Status: map[string]any{"observed": true, "replicas": int64(2)}},
		})
	}
	return b, of, views
}

// TestBytes: a binding without the status bodies of members is small, and grows little with
// each cluster.
func TestBytes(t *testing.T) {
	size := func(clusters int) int {
		b, of, views := wide(clusters)
		outcome := &placement.Outcome{
			Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Generation: 3, Message: fmt.Sprintf("%d of %d clusters", clusters, clusters),
		}
		b.Status = computed(t, b, of, outcome, views, time.Unix(1000, 0))
		bodies := 0
		for _, i := range b.Status.AggregatedStatus {
			if i.Status != nil {
				bodies += len(`,"status":`) + len(i.Status.Raw)
			}
		}
		raw, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		key := "/registry/work.orrery.dev/resourcebindings/shop/frontend-deployment"
		return len(key) + len(raw) - bodies
	}
	two, all, more := size(2), size(102), size(202)
	t.Logf("%d bytes on 2 clusters, %d on 102, %d on 202", two, all, more)
	const most = 1350
	if two > most {
		t.Errorf("%d bytes on two clusters, want at most %d", two, most)
	}
	for clusters, size := range map[int]int{102: all, 202: more} {
		if each := (size - two) / (clusters - 2); each > 100 {
			t.Errorf("%d bytes for each further cluster of %d, want at most 100", each, clusters)
		}
	}
}

// TestFirstHundred: a status lists the clusters with problems first, at most 100, and counts
// all.
func TestFirstHundred(t *testing.T) {
	b, of, views := wide(250)
	views[249].object = &mirror.Object{Digest: "d", Health: workv1alpha2.ResourceUnhealthy, Status: map[string]any{"cause": "1 of 2 replicas available: ImagePullBackOff"}}
	views[200].result = &apply.Result{Reason: workv1alpha2.ReasonRejected, Message: "no", Generation: 3, Template: of.version}
	views = append(views, view{cluster: "zoo", contact: lost}) // placed there before
	status := computed(t, b, of, nil, views, time.Unix(1000, 0))
	var first []string
	for _, i := range status.AggregatedStatus[:4] {
		first = append(first, i.ClusterName)
	}
	if diff := cmp.Diff([]string{"zoo", "edge-0200", "edge-0249", "edge-0000"}, first); diff != "" || len(status.AggregatedStatus) != 100 {
		t.Errorf("%d clusters, the first (-want +got):\n%s", len(status.AggregatedStatus), diff)
	}
	if diff := cmp.Diff(&workv1alpha2.ClusterCounts{Total: 250, Applied: 249, Healthy: 249, Unhealthy: 1}, status.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	healthy := meta.FindStatusCondition(status.Conditions, workv1alpha2.ConditionHealthy)
	if want := "edge-0249: 1 of 2 replicas available: ImagePullBackOff"; healthy.Message != want {
		t.Errorf("Healthy says %q, want %q", healthy.Message, want)
	}

	// After a restart nothing is known of the clusters that the status does not list. The
	// counts stay, or come from what is recorded elsewhere.
	b.Status = status
	for i := range views {
		views[i] = view{cluster: views[i].cluster, placed: views[i].placed}
	}
	if diff := cmp.Diff(status.Counts, computed(t, b, of, nil, views, time.Unix(2000, 0)).Counts); diff != "" {
		t.Errorf("counts after a restart (-want +got):\n%s", diff)
	}
	for i := range views {
		views[i].recorded = &workv1alpha2.AggregatedStatusItem{Applied: true, Health: workv1alpha2.ResourceHealthy}
	}
	got := computed(t, &workv1alpha2.ResourceBinding{ObjectMeta: b.ObjectMeta, Spec: b.Spec, Status: workv1alpha2.BindingStatus{Conditions: status.Conditions}}, of, nil, views, time.Unix(2000, 0))
	if diff := cmp.Diff(&workv1alpha2.ClusterCounts{Total: 250, Applied: 250, Healthy: 250}, got.Counts); diff != "" {
		t.Errorf("counts as recorded (-want +got):\n%s", diff)
	}
}

func TestNews(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	fine := condition(workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
	rejected := condition(workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonRejected)
	conflict := condition(workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonConflict)
	applying := condition(workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonApplying)
	insufficient := condition(workv1alpha2.ConditionScheduled, metav1.ConditionFalse, workv1alpha2.ReasonInsufficient)
	for name, tc := range map[string]struct {
		before, after []metav1.Condition
		want          []string
	}{
		"Success":         {nil, []metav1.Condition{fine}, nil},
		"OnItsWay":        {[]metav1.Condition{fine}, []metav1.Condition{applying}, nil},
		"Refused":         {[]metav1.Condition{fine}, []metav1.Condition{rejected}, []string{"Rejected"}},
		"StillRefused":    {[]metav1.Condition{rejected}, []metav1.Condition{rejected}, nil},
		"AnotherReason":   {[]metav1.Condition{rejected}, []metav1.Condition{conflict}, []string{"Conflict"}},
		"NoRoom":          {[]metav1.Condition{fine}, []metav1.Condition{insufficient, fine}, []string{"Insufficient"}},
		"RefusedAndFirst": {nil, []metav1.Condition{insufficient, rejected}, []string{"Insufficient", "Rejected"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range news(workv1alpha2.BindingStatus{Conditions: tc.before}, workv1alpha2.BindingStatus{Conditions: tc.after}) {
				got = append(got, c.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRemoval(t *testing.T) {
	kept := func(generation int64, reason, message string) view {
		return view{cluster: "b", contact: answers, result: &apply.Result{Generation: generation, Reason: reason, Message: message}}
	}
	refused := kept(2, workv1alpha2.ReasonRejected, "no")
	refused.cluster = "c"
	for name, tc := range map[string]struct {
		views        []view
		reason, says string
	}{
		"Everywhere":  {nil, "", ""},
		"NotKnownYet": {[]view{{cluster: "a"}}, "", ""},
		"Busy":        {[]view{{cluster: "b", contact: answers}, {cluster: "a", contact: answers}}, workv1alpha2.ReasonRemoving, "a, b"},
		"CannotList":  {[]view{kept(2, workv1alpha2.ReasonListFails, "no"), {cluster: "a", contact: answers}}, workv1alpha2.ReasonListFails, "a, b (no)"},
		"Refused":     {[]view{kept(2, workv1alpha2.ReasonListFails, "unknown"), refused}, workv1alpha2.ReasonRejected, "b (unknown), c (no)"},
		"OfBefore":    {[]view{kept(1, workv1alpha2.ReasonConflict, "no")}, workv1alpha2.ReasonRemoving, " b"},
		"GoesOn":      {[]view{kept(2, workv1alpha2.ReasonRemoving, "")}, workv1alpha2.ReasonRemoving, " b"},
		"Lost":        {[]view{{cluster: "b", contact: lost}, {cluster: "a", contact: answers}}, workv1alpha2.ReasonClusterUnreachable, ": b; copies also still exist in a"},
		"LostAndRefused": {
			[]view{{cluster: "a", contact: lost}, kept(2, workv1alpha2.ReasonListFails, "unknown"), refused},
			workv1alpha2.ReasonClusterUnreachable, ": a; copies also still exist in b (unknown), c (no)",
		},
		"LostAlone": {[]view{{cluster: "b", contact: lost}}, workv1alpha2.ReasonClusterUnreachable, ": b"},
	} {
		t.Run(name, func(t *testing.T) {
			got := removal(2, tc.views)
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

// TestEveryReasonIsSaid: the condition has each reason why a cluster lacks the manifest.
func TestEveryReasonIsSaid(t *testing.T) {
	for _, reason := range []string{
		workv1alpha2.ReasonConflict, workv1alpha2.ReasonRejected, workv1alpha2.ReasonAPINotServed, workv1alpha2.ReasonRenderFailed,
		workv1alpha2.ReasonPodSecurity, workv1alpha2.ReasonClusterUnreachable, workv1alpha2.ReasonHubRestored, workv1alpha2.ReasonApplying,
		workv1alpha2.ReasonSuspended, workv1alpha2.ReasonOverrideMissing,
	} {
		c := fullyApplied([]clusterState{
			{view: view{cluster: "oak", result: &apply.Result{Reason: reason, Message: "why"}}, applied: no},
			{view: view{cluster: "pine"}, applied: yes},
		})
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || c.Message != "oak: why" {
			t.Errorf("%s: the condition is %+v", reason, c)
		}
	}
}

// TestStatusOfTemplateChanges: a result counts for the present template also if the status of the
// template changed since. A lost cluster cannot report a new result.
func TestStatusOfTemplateChanges(t *testing.T) {
	b := &workv1alpha2.ResourceBinding{}
	for version, want := range map[string]applied{"u/d1/x": yes, "u/d2/x": unreachable, "u/d1/y": unreachable} {
		v := view{contact: lost, result: &apply.Result{Applied: true, Template: "u/d1/x/5"}}
		if got := judgeApplied(b, subject{version: version}, v); got != want {
			t.Errorf("%s: applied is %v, want %v", version, got, want)
		}
	}
}
