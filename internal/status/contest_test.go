package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/testenv"
)

// The condition Contested exists as long as a copy is contested, and changes only with its
// message. It survives a restart until the new process has observed the copy itself.
func TestContested(t *testing.T) {
	of := subject{version: "uid/7/x", generation: 7, observed: 7}
	var events recordedEvents
	w := &writer{events: &events}
	b := &workv1alpha2.ResourceBinding{}
	b.Namespace, b.Generation, b.Spec.Resource.Generation = "shop", 2, 7
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "elm"}, {Name: "oak"}}
	fields := apply.Contest{Reason: workv1alpha2.ReasonFieldsChanged, Message: `"x" changes data.a of configmaps ns/a each time the hub puts it back`}
	deleted := apply.Contest{Reason: workv1alpha2.ReasonCopyDeleted, Message: "something in the cluster deletes configmaps ns/a each time the hub creates it"}
	warnings := func(reason string) recordedEvents {
		return recordedEvents{"Warning " + reason + " of *v1.PartialObjectMetadata", "Warning " + reason + " of *v1alpha2.ResourceBinding"}
	}
	moment := time.Unix(0, 0)
	for _, step := range []struct {
		name     string
		elm, oak apply.Contest
		absent   bool // the copy in oak is missing
		isNew    bool // the process has just started
		reason   string
		message  []string // parts of the message
		events   recordedEvents
		same     bool // the status does not change
	}{
		{name: "AsItIsToBe"},
		{name: "AFieldIsChanged", oak: fields, reason: fields.Reason, message: []string{"oak: " + fields.Message, apply.PutBackPace(), "leave the field out of the template"}, events: warnings(fields.Reason)},
		{name: "AndAgain", oak: fields, reason: fields.Reason, same: true},
		{name: "InBoth", oak: fields, elm: fields, reason: fields.Reason, message: []string{"elm: ", "; oak: "}},
		{name: "ARestart", isNew: true, reason: fields.Reason, same: true},
		{name: "AndOneIsSeenAgain", isNew: true, elm: fields, reason: fields.Reason, message: []string{"elm: " + fields.Message + ";"}},
		{name: "ItEnds"},
		{name: "ItIsDeleted", oak: deleted, absent: true, reason: deleted.Reason, message: []string{"oak: " + deleted.Message, "audit log"}, events: warnings(deleted.Reason)},
		{name: "AndIsThereForAMoment", oak: deleted, reason: deleted.Reason, same: true},
		{name: "AndIsDeletedAgain", oak: deleted, absent: true, reason: deleted.Reason, same: true},
		{name: "TheMoreUrgentReason", oak: deleted, elm: fields, reason: deleted.Reason, message: []string{"oak: ", "; elm: "}},
		{name: "ItEndsAsWell"},
	} {
		events, moment = nil, moment.Add(time.Minute)
		result := &apply.Result{Applied: true, Reason: workv1alpha2.ReasonFullyApplied, Generation: 2, Template: of.version, Digest: "d"}
		views := []view{
			{cluster: "elm", placed: true, contact: answers, listed: true, object: &mirror.Object{Health: workv1alpha2.ResourceHealthy, Digest: "d"}, result: result, contest: step.elm},
			{cluster: "oak", placed: true, contact: answers, listed: true, object: &mirror.Object{Health: workv1alpha2.ResourceHealthy, Digest: "d"}, result: result, contest: step.oak},
		}
		if step.absent {
			views[1].object = nil
		}
		about := of
		about.isNew = step.isNew
		status := computed(t, b, about, nil, views, moment)
		w.tell(b, status)
		if same := cmp.Equal(status, b.Status); same != step.same {
			t.Errorf("%s: the status is as before: %t, want %t:\n%s", step.name, same, step.same, cmp.Diff(b.Status, status))
		}
		b.Status = status
		if diff := cmp.Diff(step.events, events); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", step.name, diff)
		}
		c := meta.FindStatusCondition(status.Conditions, workv1alpha2.ConditionContested)
		if c == nil {
			c = &metav1.Condition{}
		}
		if c.Reason != step.reason || step.reason != "" && (c.Status != metav1.ConditionTrue || c.ObservedGeneration != 2) {
			t.Errorf("%s: the condition is %+v, want %q", step.name, c, step.reason)
		}
		for _, text := range step.message {
			if !strings.Contains(c.Message, text) {
				t.Errorf("%s: the message is %q, want %q in it", step.name, c.Message, text)
			}
		}
		applied := meta.IsStatusConditionTrue(status.Conditions, workv1alpha2.ConditionFullyApplied)
		if want := step.oak != deleted; applied != want {
			t.Errorf("%s: FullyApplied is %t, want %t", step.name, applied, want)
		}
	}
}

// The objects of the hub are written once, even if a copy is changed and put back again and
// again.
func TestAContestedCopyIsWrittenOfOnce(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(1))
	ns := testenv.Namespace(t, testenv.Config(0))
	d := f.template("a")
	d.Namespace, d.Labels = ns, map[string]string{"team": "ours"}
	f.must(f.hub.Create(t.Context(), d))
	b := f.deployed(d, "oak")
	f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)

	c, err := kubernetes.NewForConfig(testenv.Config(1))
	f.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events, err := c.AppsV1().Deployments(ns).Watch(ctx, metav1.ListOptions{})
	f.must(err)
	undone, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { // changes the label each time the hub puts it back
		for e := range events.ResultChan() {
			o, ok := e.Object.(*appsv1.Deployment)
			if !ok || e.Type == watch.Deleted || o.Labels["team"] == "theirs" {
				continue
			}
			_, err := c.AppsV1().Deployments(ns).Patch(ctx, o.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"theirs"}}}`), metav1.PatchOptions{FieldManager: "labeller"})
			if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				ended <- err
				return
			}
			undone <- struct{}{}
		}
		ended <- nil
	}()
	round := func() {
		t.Helper()
		select {
		case <-undone:
		case err := <-ended:
			t.Fatalf("the labeller ended: %v", err)
		case <-time.After(deadline):
			t.Fatal("the label was not put back")
		}
	}
	for range 4 {
		round()
	}
	f.condition(b, workv1alpha2.ConditionContested, metav1.ConditionTrue, workv1alpha2.ReasonFieldsChanged)
	if c := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionContested); !strings.Contains(c.Message, `oak: "labeller" changes metadata.labels.team of deployments.apps `+ns+"/a") {
		t.Errorf("the condition is %+v", c)
	}
	expected := []string{"Deployment FieldsChanged", "ResourceBinding FieldsChanged"}
	f.eventually("events tell of it", func() error {
		if got := f.warnings(ns); !cmp.Equal(expected, got) {
			return fmt.Errorf("there are %v", got)
		}
		return nil
	})
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	before := f.writes.in(ns)
	for range 2 { // after pauses
		round()
	}
	if made := f.writes.in(ns) - before; made != 0 {
		t.Errorf("%d writes were made to the hub in two rounds more", made)
	}
	version := b.ResourceVersion
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if b.ResourceVersion != version {
		t.Errorf("the binding was written: %+v", b.Status)
	}
	if got := f.warnings(ns); !slices.Equal(expected, got) {
		t.Errorf("the events are %v", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "oak"}}
	f.must(f.hub.Delete(t.Context(), cluster))
	f.eventually("oak has left", func() error {
		err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it has not"))
	})
}
