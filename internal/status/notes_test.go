package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/mirror"
)

func serving(cluster string, ports map[string]any) clusterState {
	return clusterState{applied: yes, view: view{cluster: cluster, placed: true, object: &mirror.Object{Status: map[string]any{"nodePorts": ports}}}}
}

func TestHubNodePorts(t *testing.T) {
	of := subject{version: "v", nodePorts: map[string]int64{"80/TCP": 31000, "53/UDP": 31001}}
	same := serving("a", map[string]any{"80/TCP": int64(31000), "53/UDP": int64(31001)})
	other := serving("b", map[string]any{"80/TCP": int64(31234), "53/UDP": int64(31001)})
	last := clusterState{applied: yes, view: view{cluster: "c", placed: true}, item: workv1alpha2.AggregatedStatusItem{
		Status: &runtime.RawExtension{Raw: []byte(`{"nodePorts":{"80/TCP":32000}}`)},
	}}
	left := other
	left.placed = false
	behind := other
	behind.applied = no
	for name, tc := range map[string]struct {
		of      subject
		states  []clusterState
		want    string
		message string
	}{
		"Same":               {of, []clusterState{same}, "True/HubNodePorts", ""},
		"OneHasItsOwn":       {of, []clusterState{same, other}, "False/OwnNodePorts", "b: 80/TCP is at 31234, not 31000"},
		"AsItWasLastSeen":    {of, []clusterState{same, last}, "False/OwnNodePorts", "c: 80/TCP is at 32000, not 31000"},
		"WhatLeavesIsNoneOf": {of, []clusterState{same, left}, "True/HubNodePorts", ""},
		"OfAnEarlierState":   {of, []clusterState{same, behind}, "", ""},
		"NothingIsKnown":     {of, []clusterState{{view: view{cluster: "a", placed: true}}}, "", ""},
		"AnotherType":        {subject{version: "v"}, []clusterState{same}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, message := "", ""
			if c := hubNodePorts(tc.of, tc.states); c != nil {
				got, message = string(c.Status)+"/"+c.Reason, c.Message
			}
			if diff := cmp.Diff([]string{tc.want, tc.message}, []string{got, message}); diff != "" {
				t.Error(diff)
			}
		})
	}

	// The condition ends with the type, and stays while the template is unknown.
	b := &workv1alpha2.ResourceBinding{Status: workv1alpha2.BindingStatus{Conditions: []metav1.Condition{{Type: workv1alpha2.ConditionHubNodePorts, Status: metav1.ConditionTrue}}}}
	for version, want := range map[string]bool{"v": false, "": true} {
		status := compute(b, subject{version: version}, nil, []clusterState{same}, nil, time.Now())
		if got := meta.FindStatusCondition(status.Conditions, workv1alpha2.ConditionHubNodePorts) != nil; got != want {
			t.Errorf("version %q: the condition is there: %t, want %t", version, got, want)
		}
	}
}

// The status says what a cluster changes in a manifest, even while the cluster does not answer.
func TestWhatAClusterChangesIsSaid(t *testing.T) {
	const words = "the cluster changes what is applied: data.key"
	of := subject{version: "uid/7/x", generation: 7, observed: 7}
	b := &workv1alpha2.ResourceBinding{}
	b.Generation, b.Spec.Resource.Generation = 2, 7
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "a"}, {Name: "b"}}
	result := func(message string) *apply.Result {
		return &apply.Result{Applied: true, Reason: workv1alpha2.ReasonFullyApplied, Message: message, Generation: 2, Template: of.version, Digest: "d"}
	}
	object := &mirror.Object{Health: workv1alpha2.ResourceHealthy, Digest: "d"}
	views := []view{
		{cluster: "a", placed: true, contact: answers, listed: true, object: object, result: result(words)},
		{cluster: "b", placed: true, contact: answers, listed: true, object: object, result: result("")},
	}
	check := func(status workv1alpha2.BindingStatus) {
		t.Helper()
		c := meta.FindStatusCondition(status.Conditions, workv1alpha2.ConditionFullyApplied)
		if c == nil || c.Status != metav1.ConditionTrue || c.Message != "a: "+words {
			t.Errorf("FullyApplied is %+v", c)
		}
		said := map[string]string{}
		for _, i := range status.AggregatedStatus {
			said[i.ClusterName] = i.AppliedMessage
		}
		if diff := cmp.Diff(map[string]string{"a": words, "b": ""}, said); diff != "" {
			t.Error(diff)
		}
	}
	b.Status = computed(t, b, of, nil, views, time.Now())
	check(b.Status)
	check(computed(t, b, of, nil, []view{{cluster: "a", placed: true, contact: lost}, {cluster: "b", placed: true, contact: lost}}, time.Now()))
}
