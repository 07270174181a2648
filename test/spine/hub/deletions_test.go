package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// propagations lists all propagation policies of a deletion.
var propagations = []metav1.DeletionPropagation{
	metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground, metav1.DeletePropagationBackground,
}

const statefulSets = "{apiVersion: apps/v1, kind: StatefulSet}"

// statefulSet returns a StatefulSet of one simulated pod, with the name of its service. It uses
// a ConfigMap.
func statefulSet(ns, name, service, config string) string {
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: 1
  serviceName: %[3]s
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: db, image: "example.org/db:1", envFrom: [{configMapRef: {name: %[4]s, optional: true}}]}]}
`, ns, name, service, config)
}

// deleted deletes a StatefulSet on the hub. It returns an error if the hub does not answer, and
// nil if the StatefulSet is already gone.
func deleted(ctx context.Context, api *testenv.API, ns, name string, propagation metav1.DeletionPropagation) error {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("apps/v1")
	o.SetKind("StatefulSet")
	o.SetNamespace(ns)
	o.SetName(name)
	return client.IgnoreNotFound(api.Delete(ctx, o, client.PropagationPolicy(propagation)))
}

// pods waits until members have the available pod of a StatefulSet, and returns its UID in
// each.
func pods(w *spine.World, name string, members ...*testenv.Member) map[string]types.UID {
	w.Helper()
	uids := map[string]types.UID{}
	for _, m := range members {
		w.Eventually(m.Name+" has the pod of "+name, func() error {
			s, err := m.Find(w.Context(), "apps/v1", "StatefulSet", w.Namespace, name)
			if err != nil {
				return err
			}
			if n, _, _ := unstructured.NestedInt64(s.Object, "status", "availableReplicas"); n != 1 {
				return fmt.Errorf("%d are available", n)
			}
			p, err := m.Find(w.Context(), "v1", "Pod", w.Namespace, name+"-0")
			if err != nil {
				return err
			}
			uids[m.Name] = p.GetUID()
			return nil
		})
	}
	return uids
}

// absent waits until an object is gone.
func absent(w *spine.World, what string, api *testenv.API, apiVersion, kind, name string) {
	w.Helper()
	w.Eventually(what+" has no "+kind+" "+name, func() error {
		switch o, err := api.Find(w.Context(), apiVersion, kind, w.Namespace, name); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("it is there: finalizers %v, owners %v, spec %v", o.GetFinalizers(), o.GetOwnerReferences(), o.Object["spec"])
		}
	})
}

// judgePods waits until the StatefulSet is gone everywhere. It then checks that the pods, and
// the deletions sent to members, agree with the propagation policy.
func judgePods(w *spine.World, name string, propagation metav1.DeletionPropagation, before map[string]types.UID, members ...*testenv.Member) {
	w.Helper()
	absent(w, "the hub", w.Hub.API, "work.orrery.dev/v1alpha2", "ResourceBinding", name+"-statefulset")
	absent(w, "the hub", w.Hub.API, "apps/v1", "StatefulSet", name)
	for _, m := range members {
		absent(w, m.Name, m.API, "apps/v1", "StatefulSet", name)
		p := w.Lookup(m.API, "v1", "Pod", w.Namespace, name+"-0")
		switch propagation {
		case metav1.DeletePropagationOrphan:
			switch {
			case p == nil:
				w.Errorf("%s: the pod of %s, which was deleted with %s, is gone", m.Name, name, propagation)
			case p.GetUID() != before[m.Name] || p.GetDeletionTimestamp() != nil || len(p.GetOwnerReferences()) > 0:
				w.Errorf("%s: the pod of %s was %s, and is %s, deleted %v, owned by %v", m.Name, name, before[m.Name], p.GetUID(), p.GetDeletionTimestamp(), p.GetOwnerReferences())
			}
		case metav1.DeletePropagationForeground:
			if p != nil {
				w.Errorf("%s: %s is gone before its pod is", m.Name, name)
			}
		case metav1.DeletePropagationBackground:
			absent(w, m.Name, m.API, "v1", "Pod", name+"-0")
		}
		sent := map[string]bool{}
		for _, r := range w.Writes(m) {
			if r.Verb == "delete" && r.Resource == "statefulsets" && r.Name == name {
				policy, _, _ := unstructured.NestedString(r.Body, "propagationPolicy")
				sent[policy] = true
			}
		}
		if want := map[string]bool{string(propagation): true}; !maps.Equal(sent, want) {
			w.Errorf("%s: deletions of %s were sent with %v, want %s", m.Name, name, slices.Sorted(maps.Keys(sent)), propagation)
		}
	}
}

// TestDeletionPropagation deletes templates with each propagation policy: the objects that the
// copies own stay or are deleted in members, as the policy says.
func TestDeletionPropagation(t *testing.T) {
	w := spine.Start(t, "propagation")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", statefulSets, spine.In("oak", "pine")))
	before := map[metav1.DeletionPropagation]map[string]types.UID{}
	name := func(p metav1.DeletionPropagation) string { return spine.Lower("Db" + string(p)) }
	for _, p := range propagations {
		w.Hub.Apply(t, statefulSet(w.Namespace, name(p), "db", "none"))
	}
	for _, p := range propagations {
		before[p] = pods(w, name(p), w.Oak, w.Pine)
	}
	for _, p := range propagations {
		w.Eventually("delete "+name(p), func() error { return deleted(t.Context(), w.Hub.API, w.Namespace, name(p), p) })
	}
	for _, p := range propagations {
		judgePods(w, name(p), p, before[p], w.Oak, w.Pine)
	}
}

// TestReplacedTemplateKeepsItsPods changes an immutable field without an outage: it deletes a
// StatefulSet with propagation Orphan and creates it with another serviceName, while one
// cluster does not answer. The new copy adopts the pods of the old copy. A dependency of the
// StatefulSet is never missing.
func TestReplacedTemplateKeepsItsPods(t *testing.T) {
	w := spine.Start(t, "replaced")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", statefulSets, spine.In("oak", "pine"), "propagateDeps: true")+
		spine.ConfigMap(w.Namespace, "conf", "one")+statefulSet(w.Namespace, "db", "one", "conf"))
	before := pods(w, "db", w.Oak, w.Pine)
	config := w.Placed(w.Oak, "v1", "ConfigMap", "conf")
	mark := w.Oak.Mark()
	w.Pine.Fail(testenv.Cut)
	w.Lost(w.Pine)
	w.Eventually("delete db", func() error {
		return deleted(t.Context(), w.Hub.API, w.Namespace, "db", metav1.DeletePropagationOrphan)
	})
	absent(w, "the hub", w.Hub.API, "apps/v1", "StatefulSet", "db")
	w.Hub.Apply(t, statefulSet(w.Namespace, "db", "two", "conf"))
	absent(w, w.Oak.Name, w.Oak.API, "apps/v1", "StatefulSet", "db")
	w.Hub.Kill() // the pending work for pine is in the binding
	w.Restart()
	w.Pine.Heal()
	for _, m := range []*testenv.Member{w.Oak, w.Pine} {
		w.Eventually(m.Name+" has the new StatefulSet and the old pod", func() error {
			s, err := m.Find(t.Context(), "apps/v1", "StatefulSet", w.Namespace, "db")
			if err != nil {
				return err
			}
			p, err := m.Find(t.Context(), "v1", "Pod", w.Namespace, "db-0")
			if err != nil {
				return err
			}
			owner := metav1.GetControllerOf(p)
			service, _, _ := unstructured.NestedString(s.Object, "spec", "serviceName")
			if service != "two" || owner == nil || owner.UID != s.GetUID() {
				return fmt.Errorf("service %q, the pod is owned by %v, the StatefulSet is %s", service, owner, s.GetUID())
			}
			if p.GetUID() != before[m.Name] {
				t.Errorf("%s: the pod was made anew", m.Name)
			}
			return nil
		})
	}
	if now := w.Placed(w.Oak, "v1", "ConfigMap", "conf"); now.GetUID() != config.GetUID() {
		t.Error("what follows the StatefulSet was deleted and made anew")
	}
	var verbs []string
	for _, r := range w.WritesSince(w.Oak, mark) {
		if r.Resource == "statefulsets" && r.Name == "db" && (len(verbs) == 0 || verbs[len(verbs)-1] != r.Verb) {
			verbs = append(verbs, r.Verb)
		}
	}
	if len(verbs) == 0 || verbs[0] != "delete" || slices.Contains(verbs[1:], "delete") {
		t.Errorf("the StatefulSet was written in oak by %v, want one deletion first", verbs)
	}
}

// TestDeletionsUnderKills kills the hub with SIGKILL at random points while templates are
// deleted with each propagation policy: between the request and its answer, while the garbage
// collector of the hub works, before and after each write in a member.
func TestDeletionsUnderKills(t *testing.T) {
	testenv.Rotate(t, 3, "TestKills", "TestDeletionsUnderKills", "TestWorkRunsOnce")
	const each = 2 // templates for each policy, in each round
	kills := testenv.Count(t, "KILLS", 3, 50)
	random := testenv.Rand(t)
	w := spine.Start(t, "propagation-kills")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", statefulSets, spine.In("oak", "pine")))
	cfg, err := w.Hub.Config()
	w.Must(err)
	admin, err := testenv.NewAPI(cfg) // usable across restarts of the hub
	w.Must(err)
	d, err := dynamic.NewForConfig(cfg)
	w.Must(err)
	f := &fuse{hub: w.Hub}
	h := &history{resource: d.Resource(bindingResource), bindings: map[types.UID]*past{}, onEvent: f.event}
	following := make(chan struct{})
	go func() { defer close(following); h.follow(t.Context()) }()
	t.Cleanup(func() { <-following })
	for _, m := range []*testenv.Member{w.Oak, w.Pine} {
		m.OnWriteIn(w.Namespace, func(r testenv.Write) {
			if r.Namespace == w.Namespace {
				f.event()
			}
		})
	}
	type victim struct {
		name        string
		propagation metav1.DeletionPropagation
		pods        map[string]types.UID
	}
	for round := range kills {
		var victims []victim
		for _, p := range propagations {
			for i := range each {
				victims = append(victims, victim{name: fmt.Sprintf("db-%d-%s-%d", round, spine.Lower(string(p))[1:], i), propagation: p})
			}
		}
		for _, v := range victims {
			w.Hub.Apply(t, statefulSet(w.Namespace, v.name, "db", "none"))
		}
		for i, v := range victims {
			victims[i].pods = pods(w, v.name, w.Oak, w.Pine)
		}
		w.CaughtUp(0, w.Oak, w.Pine)
		random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		// The deletion of a victim makes about six events: two changes and the end of its
		// binding, and a write in each member. At 0 the hub is killed between two requests of
		// the user.
		at := random.IntN(5 * len(victims))
		between := random.IntN(len(victims))
		var burnt <-chan struct{}
		if at > 0 {
			burnt = f.light(at)
		}
		for i, v := range victims {
			if at == 0 && i == between {
				w.Hub.Kill()
			}
			if !w.Hub.Running() {
				f.light(0)
				w.Restart()
			}
			w.Eventually("the hub deletes "+v.name, func() error {
				err := deleted(t.Context(), admin, w.Namespace, v.name, v.propagation)
				if err != nil && !w.Hub.Running() {
					f.light(0)
					return errors.Join(err, w.Hub.Start())
				}
				return err
			})
		}
		w.Eventually("the hub is killed, or has deleted everything", func() error {
			select {
			case <-burnt:
				return nil
			default:
			}
			for _, v := range victims {
				if _, err := admin.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, v.name+"-statefulset"); !apierrors.IsNotFound(err) {
					return fmt.Errorf("the binding of %s is there (%w)", v.name, err)
				}
			}
			return nil
		})
		f.light(0)
		if !w.Hub.Running() {
			w.Restart()
		}
		for _, v := range victims {
			judgePods(w, v.name, v.propagation, v.pods, w.Oak, w.Pine)
		}
		if t.Failed() {
			t.Fatalf("round %d: killed at event %d", round, at)
		}
	}
}
