package placement

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

// jobSet returns a JobSet with a head and some workers.
func jobSet(name string, workers int64) *unstructured.Unstructured {
	job := func(name string, parallelism int64) any {
		return map[string]any{"name": name, "template": map[string]any{"spec": map[string]any{
			"parallelism": parallelism,
			"template":    map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "train"}}}},
		}}}
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicatedJobs": []any{job("head", 1), job("workers", workers)}}}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"})
	o.SetNamespace("shop")
	o.SetName(name)
	o.SetUID("uid")
	return o
}

func inOneCluster(clusters ...string) policyv1alpha1.Placement {
	p := in(clusters...)
	p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByCluster, MinGroups: 1, MaxGroups: 1}}
	return p
}

func TestDecideComponents(t *testing.T) {
	withCapacity := func(name string, n int64) *fleet.Cluster {
		return but(name, func(c *fleet.Cluster) { c.FreeCapacity = free(n) })
	}
	s := fleet.NewSnapshot(1, withCapacity("a", 3), withCapacity("b", 4))
	d := Decide(s, ofPolicy(jobSet("train", 3), inOneCluster("a", "b")), CurrentState{})
	if diff := cmp.Diff([]workv1alpha2.Component{{Name: "head", Replicas: 1}, {Name: "workers", Replicas: 3}}, d.Spec.Components); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	if got := where(d.Spec); got != "b" || d.Spec.Replicas != nil || d.Spec.ReplicaSchedulingType != "" || d.Outcome.Reason != scheduled {
		t.Errorf("placed in %q as %q: %s", got, d.Spec.ReplicaSchedulingType, d.Outcome.Message)
	}
	// A larger one finds no capacity, names the missing component, and is retried. A placed one
	// stays as it grows.
	grown := ofPolicy(jobSet("train", 4), inOneCluster("a", "b"))
	none := Decide(s, grown, CurrentState{})
	if got := where(none.Spec); got != "" || none.Outcome.Status != metav1.ConditionFalse || none.Outcome.Reason != insufficient || none.RetryAfter != capacityLook ||
		none.Outcome.Message != "no cluster has free capacity for all of its components together; nothing is left for head in a, b" {
		t.Errorf("placed in %q: %+v, again after %s", got, none.Outcome, none.RetryAfter)
	}
	b := &workv1alpha2.ResourceBinding{Spec: *d.Spec}
	if stays := Decide(s, grown, CurrentState{Binding: b}); where(stays.Spec) != "b" || len(stays.Spec.GracefulEvictionTasks) > 0 || stays.Spec.Components[1].Replicas != 4 {
		t.Errorf("it moves to %q as it grows: %s", where(stays.Spec), stays.Outcome.Message)
	}
	// If the policy divides, there is no message about nothing to divide, and the object waits for
	// clusters that are about to report capacity.
	shared := ofPolicy(jobSet("train", 3), sharedIn("a", "b"))
	if d := Decide(s, shared, CurrentState{}); len(d.Spec.Clusters) != 1 || d.Outcome.Message != "1 of 2 clusters" {
		t.Errorf("divided, it is placed in %q: %s", where(d.Spec), d.Outcome.Message)
	}
	unknown := but("a", func(c *fleet.Cluster) { c.Expected, c.FreeCapacity = true, nil })
	if d := Decide(fleet.NewSnapshot(1, unknown), ofPolicy(jobSet("train", 3), inOneCluster("a")), CurrentState{Starting: true}); d.Spec != nil || d.RetryAfter != settlingLook {
		t.Errorf("it does not wait for the capacity of a: %+v", d)
	}
	// If the policy duplicates, each cluster gets the whole object, with any capacity.
	if d := Decide(s, ofPolicy(jobSet("train", 9), in("a", "b")), CurrentState{}); where(d.Spec) != "a b" || d.Outcome.Reason != scheduled {
		t.Errorf("duplicated, it is placed in %q: %s", where(d.Spec), d.Outcome.Message)
	}
}

// TestReservationsOfComponents: components are reserved until all pods of the object exist. For a
// growing object only the difference is reserved.
func TestReservationsOfComponents(t *testing.T) {
	k := binding.Template{GroupKind: schema.GroupKind{Group: "jobset.x-k8s.io", Kind: "JobSet"}, Namespace: "shop", Name: "train"}
	l := &ledger{reserved: map[string]int64{}, objects: map[string]int64{}, doubts: map[string]int{}, snapshot: fleet.NewSnapshot(1, fine("a"), fine("b"))}
	f := &fakeFleet{pods: map[copyOf]int64{}}
	r := newReservations(l, f, nil)
	r.active = true
	var b *workv1alpha2.ResourceBinding
	write := func(where string, workers int64) {
		want := placedBinding("", 0, in(), where)
		want.UID, want.Spec.Resource = "binding", workv1alpha2.ObjectReference{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "train"}
		d := demandOf(jobSet("train", workers))
		want.Spec.Components = componentsOf(Template{Components: d.components})
		if b != nil {
			want.Generation = b.Generation + 1
		}
		r.take(k, b, d, &want.Spec)
		b = want
		r.written(k, b)
	}
	pods := func(cluster string, n int64) {
		f.pods[copyOf{"binding", cluster}] = n
		r.observed(cluster, "binding")
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { write("a", 3) }, " a=4*"},
		{func() { pods("a", 3) }, " a=4"}, // which of the pods is missing is unknown
		{func() { pods("a", 4) }, ""},
		{func() { write("a", 3) }, ""},
		{func() { write("a", 8) }, " a=5"},
		{func() { pods("a", 9) }, ""},
		{func() { write("a", 2) }, ""},
		{func() { write("b", 2) }, " b=3*"},
		{func() { write("b", 5) }, " b=6*"},
		{func() { r.refresh(time.Now().Add(reservationLimit + time.Minute)) }, ""},
	} {
		step.do()
		if got := l.says(); got != step.want {
			t.Errorf("reserved after step %d:%s, want%s", i, got, step.want)
		}
	}
	if len(r.held)+len(r.owners)+len(r.in) > 0 {
		t.Errorf("in the end %d are held", len(r.held))
	}

	// After a restart, running pods reserve nothing more, and missing pods reserve their capacity.
	other := b.DeepCopy()
	other.UID, other.Name = "other", "other"
	f = &fakeFleet{pods: map[copyOf]int64{{"binding", "b"}: 6, {"other", "b"}: 0}}
	r = newReservations(l, f, nil)
	r.activate(func() []*workv1alpha2.ResourceBinding { return []*workv1alpha2.ResourceBinding{b, other} },
		func(*workv1alpha2.ResourceBinding) demand { return demandOf(jobSet("train", 5)) }, time.Now())
	if got := l.says(); got != " b=6*" {
		t.Errorf("reserved after a restart:%s, want b=6*", got)
	}
}

// TestComponentsKeepWithinTheCapacity: many objects at once are each placed whole, or not at all if
// the capacity is used up.
func TestComponentsKeepWithinTheCapacity(t *testing.T) {
	w := newWorld(t, 3)
	w.setCapacity(10)
	w.create(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "jobsets.jobset.x-k8s.io", Annotations: map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for a test"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "jobset.x-k8s.io", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "jobsets", Kind: "JobSet"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha2", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	})
	p := w.policy("p", policyv1alpha1.ResourceSelector{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"})
	p.Spec.Placement.SpreadConstraints = inOneCluster().SpreadConstraints
	w.create(p)
	for i := range 8 { // of four pods each
		o := jobSet(fmt.Sprint("train-", i), 3)
		o.SetNamespace(w.namespace)
		o.SetUID("")
		w.eventually(o.GetName(), func() error { return w.client.Create(w.ctx, o.DeepCopy()) })
	}
	placed := map[string]int{}
	for i := range 8 {
		name := binding.NameFor(binding.Template{GroupKind: schema.GroupKind{Group: "jobset.x-k8s.io", Kind: "JobSet"}, Name: fmt.Sprint("train-", i)})
		w.eventually("decision on "+name, func() error {
			b := w.binding(name)
			if b == nil {
				return fmt.Errorf("no binding")
			}
			o, ok := w.controller.Outcome(b.UID)
			if !ok || o.Reason != scheduled && o.Reason != insufficient {
				return fmt.Errorf("outcome %+v", o)
			}
			return nil
		})
		b := w.binding(name)
		if diff := cmp.Diff([]workv1alpha2.Component{{Name: "head", Replicas: 1}, {Name: "workers", Replicas: 3}}, b.Spec.Components); diff != "" {
			t.Errorf("components of %s (-want +got):\n%s", name, diff)
		}
		placed[w.placed(b)]++
	}
	if diff := cmp.Diff(map[string]int{"a": 2, "b": 2, "c": 2, "": 2}, placed); diff != "" {
		t.Errorf("the clusters have (-want +got):\n%s", diff)
	}
}
