package placement

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

const (
	orphan     = metav1.DeletePropagationOrphan
	foreground = metav1.DeletePropagationForeground
	background = metav1.DeletePropagationBackground
)

func TestGone(t *testing.T) {
	for name, tc := range map[string]struct {
		deleted    bool
		finalizers []string
		want       bool
	}{
		"Living":              {false, []string{"orphan"}, false},
		"WaitsForOthers":      {true, []string{"a.b/c"}, false},
		"Foreground":          {true, []string{"foregroundDeletion"}, true},
		"ForegroundAndOthers": {true, []string{"a.b/c", "foregroundDeletion"}, true},
		"Orphan":              {true, []string{"orphan"}, true},
		"OrphanAndOthers":     {true, []string{"a.b/c", "orphan"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			o.SetFinalizers(tc.finalizers)
			if tc.deleted {
				o.SetDeletionTimestamp(new(metav1.Now()))
			}
			if got := gone(o); got != tc.want {
				t.Errorf("it is %v, want %v", got, tc.want)
			}
		})
	}
}

// awaitDeletion waits until a binding is being deleted, and returns the propagation policy in it.
func (w *world) awaitDeletion(b *workv1alpha2.ResourceBinding) metav1.DeletionPropagation {
	w.t.Helper()
	now := &workv1alpha2.ResourceBinding{}
	w.eventually("deletion of binding "+b.Name, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(b), now); err != nil {
			return err
		}
		if now.UID != b.UID {
			return errors.New("it is another")
		}
		if now.DeletionTimestamp.IsZero() {
			return errors.New("it is not deleted")
		}
		return nil
	})
	return now.Spec.DeletionPropagation
}

// collect removes finalizers from a template, except others, as the garbage collector of a hub
// does.
func (w *world) collect(d *appsv1.Deployment, others ...string) {
	w.t.Helper()
	w.eventually("garbage collection of "+d.Name, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return client.IgnoreNotFound(err)
		}
		d.Finalizers = others
		return client.IgnoreNotFound(w.client.Update(w.ctx, d))
	})
}

// disown removes the owner references of a binding, as the garbage collector of a hub does to
// orphan the dependents of a template.
func (w *world) disown(b *workv1alpha2.ResourceBinding) {
	w.t.Helper()
	update(w, b, func(b *workv1alpha2.ResourceBinding) { b.OwnerReferences = nil })
}

// TestBindingsStoreThePropagation: the propagation policy of a template's deletion is stored
// in the binding before the binding is deleted. That is one write, and none for background
// deletions.
func TestBindingsStoreThePropagation(t *testing.T) {
	w := newWorld(t, 1)
	w.create(w.policy("p", deployments()))
	const other = "example.org/other"
	for name, tc := range map[string]struct {
		propagation metav1.DeletionPropagation
		finalizer   string
		want        metav1.DeletionPropagation
		writes      []string
	}{
		"background":   {background, "", "", []string{"DELETE"}},
		"orphan":       {orphan, "", orphan, []string{"PATCH", "DELETE"}},
		"orphan-waits": {orphan, other, orphan, []string{"PATCH", "DELETE"}},
		"foreground":   {foreground, "", foreground, []string{"PATCH", "DELETE"}},
	} {
		t.Run(name, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			d := deployment(name, 1, nil)
			if tc.finalizer != "" {
				d.Finalizers = []string{tc.finalizer}
			}
			w.create(d)
			b := w.waitPlaced(name+"-deployment", "a=1", scheduled)
			if diff := cmp.Diff([]metav1.OwnerReference{binding.Owner(&b.Spec)}, b.OwnerReferences); diff != "" {
				t.Errorf("owners (-want +got):\n%s", diff)
			}
			if err := w.client.Delete(w.ctx, d, client.PropagationPolicy(tc.propagation)); err != nil {
				t.Fatal(err)
			}
			if tc.finalizer != "" {
				// The collector removes its own finalizer first. The binding, which has the
				// propagation policy by then, stays until the other finalizer is removed.
				w.collect(d, tc.finalizer)
				w.eventually("the binding has the propagation policy", func() error {
					if now := w.binding(b.Name); now.Spec.DeletionPropagation != tc.want || !now.DeletionTimestamp.IsZero() {
						return fmt.Errorf("it says %q, deleted %v", now.Spec.DeletionPropagation, now.DeletionTimestamp)
					}
					return nil
				})
			}
			w.collect(d)
			if got := w.awaitDeletion(b); got != tc.want {
				t.Errorf("it says %q, want %q", got, tc.want)
			}
			var writes []string
			for _, write := range w.recorder.of("/resourcebindings/" + b.Name) {
				writes = append(writes, write[:len(write)-len(" /apis/work.orrery.dev/v1alpha2/namespaces/"+w.namespace+"/resourcebindings/"+b.Name)])
			}
			// With a stale cache, the deletion is sent twice.
			if diff := cmp.Diff(tc.writes, slices.Compact(writes)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			w.release(b)
		})
	}
}

// TestDeletionWhileNoServerRuns: after a restart, a missing owner reference shows that
// dependents were orphaned, because the garbage collector removes it then.
func TestDeletionWhileNoServerRuns(t *testing.T) {
	w := newWorld(t, 1)
	w.create(w.policy("p", deployments()))
	want := map[string]metav1.DeletionPropagation{"background": "", "orphan": orphan, "foreground": "", "earlier": ""}
	bindings := map[string]*workv1alpha2.ResourceBinding{}
	deleted := map[string]*appsv1.Deployment{}
	for name := range want {
		deleted[name] = deployment(name, 1, nil)
		w.create(deleted[name])
	}
	for name := range want {
		bindings[name] = w.waitPlaced(name+"-deployment", "a=1", scheduled)
	}
	w.stop()
	w.disown(bindings["orphan"])
	update(w, bindings["earlier"], func(b *workv1alpha2.ResourceBinding) { b.OwnerReferences, b.Spec.OwnerReferenced = nil, false })
	for name, d := range deleted {
		propagation := background
		if p := want[name]; p != "" {
			propagation = p
		}
		if err := w.client.Delete(w.ctx, d, client.PropagationPolicy(propagation)); err != nil {
			t.Fatal(err)
		}
		w.collect(d)
	}
	w.start()
	for name, b := range bindings {
		if got := w.awaitDeletion(b); got != want[name] {
			t.Errorf("%s: it says %q, want %q", name, got, want[name])
		}
	}
	// The binding of an earlier version does not show the propagation policy. It gets the
	// default, and an event reports that.
	w.eventually("events", func() error {
		all := &eventsv1.EventList{}
		if err := w.client.List(w.ctx, all, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		var unseen []string
		for _, e := range all.Items {
			if e.Reason == "DeletionUnseen" {
				unseen = append(unseen, e.Regarding.Name)
			}
		}
		if !slices.Equal(unseen, []string{"earlier-deployment"}) {
			return fmt.Errorf("they are about %v", unseen)
		}
		return nil
	})
	for _, b := range bindings {
		w.release(b)
	}
}

// TestDependenciesOfAnOrphaningTemplateStay: when a template is deleted with propagation Orphan,
// its dependencies stay where its pods stay. Their bindings are marked so before the template's
// binding is deleted. A template of the same name takes the dependencies back.
func TestDependenciesOfAnOrphaningTemplateStay(t *testing.T) {
	w := newWorld(t, 1)
	w.create(configMap("conf"))
	p := w.policy("p", deployments())
	p.Spec.PropagateDeps = true
	w.create(p)
	web := deployment("web", 1, nil)
	uses(web, "conf")
	w.create(web)
	b := w.waitPlaced("web-deployment", "a=1", scheduled)
	follows := w.waitPlaced("conf-configmap", "a", scheduled)
	if err := w.client.Delete(w.ctx, web, client.PropagationPolicy(orphan)); err != nil {
		t.Fatal(err)
	}
	w.awaitDeletion(b)
	if now := w.binding("conf-configmap"); now.UID != follows.UID || !now.Spec.PreserveResourcesOnDeletion {
		t.Errorf("the binding of what follows says %+v once that of the template is deleted", now.Spec)
	}
	w.collect(web)
	w.release(b)
	w.release(follows)
	again := deployment("web", 1, nil)
	uses(again, "conf")
	w.create(again)
	w.waitPlaced("web-deployment", "a=1", scheduled)
	w.eventually("it follows again", func() error {
		now := w.binding("conf-configmap")
		if now == nil || now.UID == follows.UID || now.Spec.PreserveResourcesOnDeletion || now.Spec.DeletionPropagation != "" {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
}

// TestDependenciesOfAReplacedTemplateStay: a template that is deleted and created again at once, as
// by kubectl replace --force, keeps the bindings of its dependencies, and so the copies with their
// cluster IPs and ports. The same holds if only the binding is deleted. A deleted template does
// not.
func TestDependenciesOfAReplacedTemplateStay(t *testing.T) {
	w := newWorld(t, 1)
	w.create(configMap("conf"))
	p := w.policy("p", deployments())
	p.Spec.PropagateDeps = true
	w.create(p)
	create := func() *appsv1.Deployment {
		web := deployment("web", 1, nil)
		uses(web, "conf")
		w.create(web)
		return web
	}
	remove := func(o client.Object) {
		t.Helper()
		if err := w.client.Delete(w.ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	placedAgain := func(before *workv1alpha2.ResourceBinding) (now *workv1alpha2.ResourceBinding) {
		t.Helper()
		w.eventually("web is placed again", func() error {
			if now = w.binding("web-deployment"); now == nil || now.UID == before.UID || len(now.Spec.Clusters) == 0 {
				return fmt.Errorf("its binding is %+v", now)
			}
			return nil
		})
		return now
	}
	web := create()
	b := w.waitPlaced("web-deployment", "a=1", scheduled)
	follows := w.waitPlaced("conf-configmap", "a", scheduled)
	stays := func(when string) {
		t.Helper()
		if now := w.binding("conf-configmap"); now == nil || now.UID != follows.UID || !now.DeletionTimestamp.IsZero() {
			t.Errorf("%s, the binding of what follows is %+v", when, now)
		}
	}

	remove(web)
	web = create()
	w.eventually("the controller knows the new template", func() error {
		if o, _ := w.controller.templates.Get(appsv1.SchemeGroupVersion.WithKind("Deployment"), w.namespace, "web"); o == nil || o.GetUID() != web.UID {
			return errors.New("it does not")
		}
		return nil
	})
	w.release(b)
	b = placedAgain(b)
	stays("once the template is replaced")

	remove(b)
	w.release(b)
	b = placedAgain(b)
	stays("once the binding was deleted")

	remove(web)
	w.release(b)
	w.release(follows)
}
