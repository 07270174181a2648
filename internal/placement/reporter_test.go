package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

const complete = policyv1alpha1.ConditionComplete

// events returns the reasons of the Events on an object, sorted.
func (w *world) events(o client.Object) []string {
	w.t.Helper()
	var list eventsv1.EventList
	if err := w.client.List(w.ctx, &list); err != nil {
		w.t.Fatal(err)
	}
	var reasons []string
	for _, e := range list.Items {
		if e.Regarding.UID == o.GetUID() {
			reasons = append(reasons, e.Reason)
		}
	}
	slices.Sort(reasons)
	return reasons
}

// waitEvents waits until an object has exactly these Events.
func (w *world) waitEvents(o client.Object, reasons ...string) {
	w.t.Helper()
	w.eventually("events on "+o.GetName(), func() error {
		if diff := cmp.Diff(reasons, w.events(o), cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// labelled returns a selector of ConfigMaps that only one test creates.
func (w *world) labelled() policyv1alpha1.ResourceSelector {
	return policyv1alpha1.ResourceSelector{
		APIVersion: "v1", Kind: "ConfigMap", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"test": w.namespace}},
	}
}

func (w *world) configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{"test": w.namespace},
	}}
}

// TestSkippedInSystemNamespace: a cluster-wide policy reports objects of system namespaces that it
// skips, once, and how to place them.
func TestSkippedInSystemNamespace(t *testing.T) {
	w := newWorld(t, 1)
	system := "kube-" + w.namespace
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}})
	hidden := w.configMap(system, "hidden")
	w.create(hidden)
	w.create(w.configMap(w.namespace, "seen"))
	p := w.clusterPolicy("all", w.labelled())
	w.create(p)
	w.waitStatus(p, 1, map[string]string{ready: policyv1alpha1.ReasonReady, complete: policyv1alpha1.ReasonSystemNamespace},
		"left out: 1 (ConfigMap "+system+"/hidden)", "name the namespace in the selector")
	w.waitEvents(p, policyv1alpha1.ReasonSystemNamespace)

	// One more skipped object is counted, without another Event.
	later := w.configMap(system, "later")
	w.create(later)
	w.waitStatus(p, 1, map[string]string{complete: policyv1alpha1.ReasonSystemNamespace}, "left out: 2")

	// After a restart nothing is reported again: the first Event is that of a new policy.
	w.stop()
	w.start()
	inside := w.clusterPolicy("inside", w.labelled(), policyv1alpha1.ResourceSelector{APIVersion: "example.org/v1", Kind: "Gadget"})
	inside.Spec.ResourceSelectors[0].Namespace = system
	w.create(inside)
	w.waitEvents(inside, policyv1alpha1.ReasonKindNotServed)
	if got := w.recorder.of("/events"); len(got) != 1 {
		t.Errorf("writes of events: %v", got)
	}
	w.waitEvents(p, policyv1alpha1.ReasonSystemNamespace)

	// The policy that names the namespace places its objects, and nothing is skipped.
	w.waitStatus(inside, 2, map[string]string{complete: policyv1alpha1.ReasonKindNotServed}, "Gadget")
	w.waitStatus(p, 1, map[string]string{complete: policyv1alpha1.ReasonComplete})
}

// TestSkippedObjectGoes: a deleted object is no longer counted as skipped.
func TestSkippedObjectGoes(t *testing.T) {
	w := newWorld(t, 1)
	system := "orrery-" + w.namespace
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}})
	hidden := w.configMap(system, "hidden")
	w.create(hidden)
	// The object is known before the policy is.
	first := w.clusterPolicy("first", w.labelled())
	w.create(first)
	w.waitStatus(first, 0, map[string]string{complete: policyv1alpha1.ReasonSystemNamespace})
	second := w.clusterPolicy("second", w.labelled())
	w.create(second)
	w.waitStatus(second, 0, map[string]string{complete: policyv1alpha1.ReasonSystemNamespace})
	w.delete(hidden)
	w.waitStatus(first, 0, map[string]string{complete: policyv1alpha1.ReasonComplete})
	w.waitStatus(second, 0, map[string]string{complete: policyv1alpha1.ReasonComplete})
}

// TestSkippedReservedObject: objects that every cluster creates for itself are skipped. The status
// says so, and warns if the policy names one.
func TestSkippedReservedObject(t *testing.T) {
	w := newWorld(t, 1)
	w.create(w.configMap(w.namespace, "kube-root-ca.crt"))
	w.create(w.configMap(w.namespace, "mine"))
	all := w.policy("all", w.labelled())
	w.create(all)
	w.waitStatus(all, 1, map[string]string{complete: policyv1alpha1.ReasonComplete}, "left out: 1 (ConfigMap "+w.namespace+"/kube-root-ca.crt)")
	named := w.policy("named", policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Name: "kube-root-ca.crt"})
	w.create(named)
	w.waitStatus(named, 0, map[string]string{complete: policyv1alpha1.ReasonReservedObject, claimed: policyv1alpha1.ReasonNothingSelected})
	w.waitEvents(named, policyv1alpha1.ReasonReservedObject)
	w.waitEvents(all)
}

// TestPolicyEvents: policies get an Event when they lose a claim, select nothing, or name a kind
// that is not served. Templates get one when no policy claims them any more. Success and restarts
// cause none.
func TestPolicyEvents(t *testing.T) {
	w := newWorld(t, 1)
	w.stop()
	w.reportDelay = shortRetry
	w.start()
	web := deployment("web", 1, map[string]string{"app": "web"})
	w.create(web)
	loser := w.clusterPolicy("loser", deployments())
	loser.Spec.ResourceSelectors[0].Namespace = w.namespace
	w.create(loser)
	w.waitStatus(loser, 1, map[string]string{ready: policyv1alpha1.ReasonReady})
	winner := w.policy("winner", deployments())
	w.create(winner)
	w.waitEvents(loser, policyv1alpha1.ReasonLostClaim)

	foreign := w.policy("foreign", policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "elsewhere"})
	w.create(foreign)
	w.waitStatus(foreign, 0, map[string]string{complete: policyv1alpha1.ReasonSelectorInvalid}, "resourceSelectors[0].namespace")
	w.waitEvents(foreign, policyv1alpha1.ReasonSelectorInvalid)
	unserved := w.policy("unserved", policyv1alpha1.ResourceSelector{APIVersion: "example.org/v1", Kind: "Gadget"})
	w.create(unserved)
	w.waitEvents(unserved, policyv1alpha1.ReasonKindNotServed)

	// Another policy takes over web: that is no Event of web.
	w.delete(winner)
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.waitStatus(loser, 1, map[string]string{ready: policyv1alpha1.ReasonReady})
	w.waitEvents(web)
	update(w, loser, func(p *policyv1alpha1.ClusterPropagationPolicy) { p.Spec.ResourceSelectors[0].Name = "nobody" })
	w.waitEvents(web, "Unclaimed")
	var list eventsv1.EventList
	if err := w.client.List(w.ctx, &list, client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Type != corev1.EventTypeWarning || e.Note == "" || strings.Contains(e.Note, "%!") {
			t.Errorf("event %s: %s %q", e.Reason, e.Type, e.Note)
		}
		if e.Reason == "Unclaimed" && !strings.Contains(e.Note, "ClusterPropagationPolicy "+loser.Name) {
			t.Errorf("the event does not name the policy: %s", e.Note)
		}
	}

	w.stop()
	w.start()
	last := w.policy("last", policyv1alpha1.ResourceSelector{APIVersion: "example.org/v1", Kind: "Gadget"})
	w.create(last)
	w.waitEvents(last, policyv1alpha1.ReasonKindNotServed)
	if got := w.recorder.of("/events"); len(got) != 1 {
		t.Errorf("writes of events after a restart: %v", got)
	}
}

// TestNoEventOfDeletedTemplate: a template that is deleted gets no Event Unclaimed.
func TestNoEventOfDeletedTemplate(t *testing.T) {
	w := newWorld(t, 1)
	p := w.policy("p", deployments())
	w.create(p)
	web := deployment("web", 1, nil)
	w.create(web)
	b := w.waitPlaced("web-deployment", "a=1", scheduled)
	w.delete(web)
	w.release(b)
	again := deployment("web", 1, nil)
	w.create(again)
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.waitStatus(p, 1, map[string]string{ready: policyv1alpha1.ReasonReady})
	if got := w.recorder.of("/events"); len(got) > 0 {
		t.Errorf("writes of events: %v", got)
	}
}

// TestActsOnHub: a template that affects the hub's API server gets one Event. Its binding's
// condition says so as long as the template exists.
func TestActsOnHub(t *testing.T) {
	w := newWorld(t, 1)
	const editors = "editors"
	w.create(w.policy("rbac", policyv1alpha1.ResourceSelector{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"}))
	granted := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: editors},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	}
	w.create(granted)
	w.waitEvents(granted, "ActsOnHub")
	b := w.waitPlaced("editors-rolebinding", "a", scheduled)
	says := func() {
		t.Helper()
		outcome, _ := w.controller.Outcome(b.UID)
		for _, words := range []string{"in force on the hub", `"edit"`} {
			if !strings.Contains(outcome.Message, words) {
				t.Errorf("the condition does not say %q: %s", words, outcome.Message)
			}
		}
	}
	says()

	w.stop()
	w.start()
	other := granted.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: w.namespace, Name: "others"}
	w.create(other)
	w.waitEvents(other, "ActsOnHub")
	w.eventually("a decision", func() error {
		if _, ok := w.controller.Outcome(b.UID); !ok {
			return errors.New("there is none")
		}
		return nil
	})
	says()
	if got := w.recorder.of("/events"); len(got) != 1 {
		t.Errorf("writes of events after a restart: %v", got)
	}
}
