package apply

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/testenv"
)

// collected removes the finalizers of a copy that is being deleted, as the garbage collector of
// a cluster does, and waits until the copy is gone.
func (f *fleet) collected(c client.Client, ns, name string) {
	f.t.Helper()
	f.eventually("the copy "+name+" is gone", func() error {
		o := &corev1.ConfigMap{}
		if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: name}, o); err != nil {
			return client.IgnoreNotFound(err)
		}
		if !o.DeletionTimestamp.IsZero() {
			o.Finalizers = nil
			if err := client.IgnoreNotFound(c.Update(f.t.Context(), o)); err != nil {
				return err
			}
		}
		return errors.New("it is there")
	})
}

// The copies of a deleted binding are deleted with the propagation of the deletion of its
// template, even in clusters that do not answer at first. All other deletions are in the
// background.
func TestDeletionsCarryThePropagation(t *testing.T) {
	const orphan, foreground, background = metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground, metav1.DeletePropagationBackground
	f := newFleet(t)
	f.loses = true
	f.start()
	r, err := testenv.NewRecorder(testenv.Config(oakServer))
	f.must(err)
	t.Cleanup(func() { f.must(r.Close()) })
	f.join("oak", r.Kubeconfig())
	oak := f.client(testenv.Config(oakServer))
	ns := testenv.Namespace(t, testenv.Config(hubServer))
	remove := func(b *workv1alpha2.ResourceBinding) { f.must(f.hub.Delete(f.t.Context(), b)) }
	says := func(p metav1.DeletionPropagation) func(*workv1alpha2.BindingSpec) {
		return func(s *workv1alpha2.BindingSpec) { s.DeletionPropagation = p }
	}
	for _, tc := range []struct {
		name string
		spec func(*workv1alpha2.BindingSpec)
		end  func(b *workv1alpha2.ResourceBinding)
		want metav1.DeletionPropagation
	}{
		{"background", nil, remove, background},
		{"orphan", says(orphan), remove, orphan},
		{"foreground", says(foreground), remove, foreground},
		{"moves-out", says(orphan), func(b *workv1alpha2.ResourceBinding) { f.retarget(b) }, background},
		{"orphaned-by-the-collector", func(s *workv1alpha2.BindingSpec) { s.OwnerReferenced = true }, remove, orphan},
		// The collector deletes the binding, and the deletion of its template was not observed yet.
		{"deleted-by-the-collector", nil, func(b *workv1alpha2.ResourceBinding) {
			o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: b.Spec.Resource.Name}}
			f.must(f.hub.Create(f.t.Context(), o))
			f.must(f.hub.Delete(f.t.Context(), o, client.PropagationPolicy(foreground)))
			f.t.Cleanup(func() { f.collected(f.hub, ns, o.Name) })
			f.eventually("the owner reference", func() error {
				if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
					return err
				}
				b.Spec.OwnerReferenced, b.Spec.Resource.UID = true, o.UID
				b.OwnerReferences = []metav1.OwnerReference{binding.Owner(&b.Spec)}
				return f.hub.Update(f.t.Context(), b)
			})
			source := configMap(ns, o.Name, "1")
			source.SetUID(o.UID)
			f.templates.set(source)
			f.eventually("the copy of that template", func() error {
				s, ok := f.applier.Result(b.UID, "oak")
				if !ok || !s.Applied || s.Generation != b.Generation {
					return errors.New("it is not applied")
				}
				return nil
			})
			remove(b)
		}, foreground},
		{"cluster-away", says(orphan), func(b *workv1alpha2.ResourceBinding) {
			r.Fail(testenv.Cut)
			f.eventually("oak is lost", func() error {
				if f.reachable("oak") == nil {
					return errors.New("it is not")
				}
				return nil
			})
			remove(b)
			r.Heal()
		}, orphan},
		{"answer-lost", says(orphan), func(b *workv1alpha2.ResourceBinding) {
			r.Fail(testenv.Mute)
			mark := r.Mark()
			remove(b)
			f.eventually("the deletion is sent", func() error {
				if !slices.ContainsFunc(r.Writes(mark), func(w testenv.Write) bool { return w.Verb == "delete" }) {
					return errors.New("it is not")
				}
				return nil
			})
			r.Heal()
		}, orphan},
	} {
		t.Run(tc.name, func(t *testing.T) {
			outer := f.t
			f.t = t
			defer func() { f.t = outer }()
			b := f.bind(configMap(ns, tc.name, "1"), tc.spec, "oak")
			f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
			mark := r.Mark()
			tc.end(b)
			f.collected(oak, ns, tc.name)
			if tc.name != "moves-out" {
				f.gone(f.hub, b)
			}
			var sent []string
			for _, w := range r.Writes(mark) {
				if w.Verb == "delete" && w.Name == tc.name {
					policy, _, err := unstructured.NestedString(w.Body, "propagationPolicy")
					f.must(err)
					sent = append(sent, policy)
				}
			}
			if want := []string{string(tc.want)}; !slices.Equal(slices.Compact(sent), want) {
				t.Errorf("deletions were sent with %v, want %v", sent, want)
			}
		})
	}
	f.unjoin("oak")
}
