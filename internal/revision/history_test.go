package revision

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func podTemplate(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}},
	}
}

func deployment(image string, edit func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-uid", Generation: 4},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: podTemplate(image),
		},
	}
	if edit != nil {
		edit(d)
	}
	return d
}

func workloadOf(t *testing.T, o any) *workload {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	w, err := read(&unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// rev returns a revision of the Deployment with the image.
func rev(t *testing.T, number int64, image string) revision {
	t.Helper()
	template := podTemplate(image)
	b, err := canonical(&template)
	if err != nil {
		t.Fatal(err)
	}
	return revision{number: number, hash: hashOf("web-uid", b), template: b, created: time.Unix(number, 0).UTC()}
}

// onHub returns the objects of revisions on the hub.
func onHub(t *testing.T, w *workload, revisions ...revision) []object {
	t.Helper()
	var objects []object
	for _, r := range revisions {
		o, _, err := w.object(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := fromObject(o, w.uid)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, back)
	}
	return objects
}

// image returns the image in a revision's template.
func image(t *testing.T, r revision) string {
	t.Helper()
	var template corev1.PodTemplateSpec
	if err := json.Unmarshal(r.template, &template); err != nil {
		t.Fatal(err)
	}
	return template.Spec.Containers[0].Image
}

func TestDecide(t *testing.T) {
	helm := func(d *appsv1.Deployment) { d.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"} }
	limit := func(n int32) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(n) }
	}
	annotated := func(key, value string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Annotations = map[string]string{key: value} }
	}
	// outcome is a plan in words: number and image of each revision.
	type outcome struct {
		Record   []string
		Forget   []int64
		Write    []string
		Remove   []string
		Annotate string
	}
	cases := map[string]struct {
		reason     string
		deployment *appsv1.Deployment
		known      []revision
		objects    []revision
		want       outcome
	}{
		"FirstRevision": {
			reason: "nobody can roll back yet, so the hub gets no object", deployment: deployment("a", nil),
			want: outcome{Record: []string{"1 a"}},
		},
		"FirstRevisionOfHelm": {
			reason: "Helm waits for the newest ReplicaSet", deployment: deployment("a", helm),
			want: outcome{Record: []string{"1 a"}, Write: []string{"Create 1 a current"}},
		},
		"NothingNew": {
			reason: "a look at what is recorded changes nothing", deployment: deployment("a", nil), known: []revision{rev(t, 1, "a")},
		},
		"SecondRevision": {
			reason: "the first is written, too", deployment: deployment("b", nil), known: []revision{rev(t, 1, "a")},
			want: outcome{Record: []string{"2 b"}, Write: []string{"Create 1 a", "Create 2 b current"}, Annotate: "2"},
		},
		"Idle": {
			reason: "records and hub are as they should", deployment: deployment("b", annotated(numberAnnotation, "2")),
			known: []revision{rev(t, 1, "a"), rev(t, 2, "b")}, objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want: outcome{Write: []string{"Keep 1 a", "Keep 2 b current"}},
		},
		"Undo": {
			reason: "an old template gets a new number, as Kubernetes does", deployment: deployment("a", annotated(numberAnnotation, "2")),
			known: []revision{rev(t, 1, "a"), rev(t, 2, "b")}, objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want: outcome{Record: []string{"3 a"}, Forget: []int64{1}, Write: []string{"Keep 2 b", "Update 3 a current"}, Annotate: "3"},
		},
		"KilledBetweenRecordAndHub": {
			reason: "the number that was recorded is the one", deployment: deployment("a", annotated(numberAnnotation, "3")),
			known: []revision{rev(t, 2, "b"), rev(t, 3, "a")}, objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want: outcome{Write: []string{"Keep 2 b", "Update 3 a current"}},
		},
		"RecordsLost": {
			reason: "the hub's objects are the history", deployment: deployment("b", annotated(numberAnnotation, "2")),
			objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want:    outcome{Record: []string{"1 a", "2 b"}, Write: []string{"Keep 1 a", "Keep 2 b current"}},
		},
		"RecordsOlder": {
			reason: "the hub's objects are believed first", deployment: deployment("c", annotated(numberAnnotation, "3")),
			known: []revision{rev(t, 1, "a"), rev(t, 2, "x")}, objects: []revision{rev(t, 2, "b"), rev(t, 3, "c")},
			want: outcome{Record: []string{"2 b", "3 c"}, Write: []string{"Create 1 a", "Keep 2 b", "Keep 3 c current"}},
		},
		"ObjectDeletedByHand": {
			reason: "the records have it", deployment: deployment("b", annotated(numberAnnotation, "2")),
			known: []revision{rev(t, 1, "a"), rev(t, 2, "b")}, objects: []revision{rev(t, 2, "b")},
			want: outcome{Write: []string{"Create 1 a", "Keep 2 b current"}},
		},
		"HistoryLimit": {
			reason: "the limit counts what is not current", deployment: deployment("c", limit(1)),
			known: []revision{rev(t, 1, "a"), rev(t, 2, "b")}, objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want: outcome{
				Record: []string{"3 c"}, Forget: []int64{1}, Write: []string{"Keep 2 b", "Create 3 c current"},
				Remove: []string{"1 a"}, Annotate: "3",
			},
		},
		"NoHistory": {
			reason: "limit 0 keeps the current one", deployment: deployment("b", limit(0)),
			known: []revision{rev(t, 1, "a")},
			want:  outcome{Record: []string{"2 b"}, Forget: []int64{1}, Write: []string{"Create 2 b current"}, Annotate: "2"},
		},
		"Paused": {
			reason:     "what is edited while paused is one revision, once it is resumed",
			deployment: deployment("c", func(d *appsv1.Deployment) { d.Spec.Paused = true; annotated(numberAnnotation, "2")(d) }),
			known:      []revision{rev(t, 1, "a"), rev(t, 2, "b")}, objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want: outcome{Write: []string{"Keep 1 a", "Keep 2 b"}},
		},
		"ChangeCause": {
			reason: "annotations of the workload belong to its current revision",
			deployment: deployment("b", func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{causeAnnotation: "it is better", numberAnnotation: "2"}
			}),
			known: []revision{rev(t, 1, "a"), rev(t, 2, "b")}, objects: []revision{rev(t, 1, "a"), rev(t, 2, "b")},
			want: outcome{Record: []string{"2 b it is better"}, Write: []string{"Keep 1 a", "Update 2 b it is better current"}},
		},
		"HelmNoLonger": {
			reason: "what is written stays right", deployment: deployment("a", nil),
			known: []revision{rev(t, 1, "a")}, objects: []revision{rev(t, 1, "a")},
			want: outcome{Write: []string{"Keep 1 a current"}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := workloadOf(t, tc.deployment)
			p, err := decide(w, tc.known, onHub(t, w, tc.objects...), time.Unix(99, 0))
			if err != nil {
				t.Fatal(err)
			}
			words := func(r revision) string {
				s := fmt.Sprintf("%d %s", r.number, image(t, r))
				if cause := r.annotations[causeAnnotation]; cause != "" {
					s += " " + cause
				}
				return s
			}
			got := outcome{Forget: p.forget, Annotate: p.annotate}
			for _, r := range p.record {
				got.Record = append(got.Record, words(r))
			}
			for _, o := range p.write {
				back, err := fromObject(o.object, w.uid)
				if err != nil {
					t.Fatal(err)
				}
				s := string(o.action) + " " + words(back.revision)
				if o.current {
					s += " current"
				}
				got.Write = append(got.Write, s)
			}
			for _, o := range p.remove {
				back, err := fromObject(o, w.uid)
				if err != nil {
					t.Fatal(err)
				}
				got.Remove = append(got.Remove, words(back.revision))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRecordHoldsARevision: a record is read back unchanged. Otherwise each reconciliation would
// write it again.
func TestRecordHoldsARevision(t *testing.T) {
	r := rev(t, 3, "a<b>")
	r.annotations = map[string]string{causeAnnotation: "because", "team": "shop"}
	item, err := r.record("web-uid")
	if err != nil {
		t.Fatal(err)
	}
	back, err := fromRecord(item)
	if err != nil {
		t.Fatal(err)
	}
	if !back.same(r) || item.Cause != "because" || !item.Created.Equal(r.created) {
		t.Errorf("recorded %+v as %+v and read %+v", r, item, back)
	}
}

func TestReplicaSetStatus(t *testing.T) {
	status := func(observed int64, available corev1.ConditionStatus, replicas, updated, ready int32) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{
			ObservedGeneration: observed, Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: available}},
		}
	}
	was := appsv1.ReplicaSetStatus{Replicas: 2, FullyLabeledReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, ObservedGeneration: 1}
	cases := map[string]struct {
		reason  string
		status  appsv1.DeploymentStatus
		was     appsv1.ReplicaSetStatus
		current bool
		want    appsv1.ReplicaSetStatus
	}{
		"EveryCluster": {
			reason: "all replicas are ready", status: status(4, corev1.ConditionTrue, 6, 6, 6), current: true,
			want: appsv1.ReplicaSetStatus{Replicas: 6, FullyLabeledReplicas: 6, ReadyReplicas: 6, AvailableReplicas: 6, ObservedGeneration: 1},
		},
		"WithinMaxUnavailable": {
			reason: "each cluster has as many as it needs", status: status(4, corev1.ConditionTrue, 10, 10, 8), current: true,
			want: appsv1.ReplicaSetStatus{Replicas: 10, FullyLabeledReplicas: 10, ReadyReplicas: 8, AvailableReplicas: 8, ObservedGeneration: 1},
		},
		"OneClusterHasNone": {
			reason: "the sum is as high as spec.replicas, but one cluster has none", status: status(4, corev1.ConditionFalse, 4, 4, 2), current: true,
			want: appsv1.ReplicaSetStatus{Replicas: 4, FullyLabeledReplicas: 4, ObservedGeneration: 1},
		},
		"OldReplicasLeft": {
			reason: "those that are ready may be the old ones", status: status(4, corev1.ConditionTrue, 6, 2, 6), current: true,
			want: appsv1.ReplicaSetStatus{Replicas: 2, FullyLabeledReplicas: 2, ObservedGeneration: 1},
		},
		"NotObserved": {
			reason: "the numbers are about an older Deployment", status: status(3, corev1.ConditionTrue, 2, 2, 2), current: true,
			want: appsv1.ReplicaSetStatus{ObservedGeneration: 1},
		},
		"NotObservedYetAgain": {
			reason: "what was known stays until something is", status: status(3, corev1.ConditionTrue, 3, 3, 3), current: true,
			was: was, want: was,
		},
		"NotCurrent": {
			reason: "it has no replicas any more", status: status(4, corev1.ConditionTrue, 2, 2, 2), was: was,
			want: appsv1.ReplicaSetStatus{ObservedGeneration: 1},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := workloadOf(t, deployment("a", func(d *appsv1.Deployment) { d.Status = tc.status }))
			got := w.status(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Status: tc.was}, tc.current)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
