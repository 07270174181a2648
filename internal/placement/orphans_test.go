package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
)

// TestWhatOrphansNeedStays: when a template is deleted with propagation Orphan, its
// dependencies stay in its clusters until the template exists again. This holds also if others
// need them in other clusters.
func TestWhatOrphansNeedStays(t *testing.T) {
	for name, own := range map[string]bool{"FollowsAnother": false, "HasAPolicyOfItsOwn": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.create(configMap("conf"))
			if own {
				p := w.policy("own", policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Name: "conf"})
				p.Spec.Placement.ClusterAffinity = w.only("b")
				w.create(p)
			}
			for name, letter := range map[string]string{"web": "a", "api": "b"} {
				p := w.policy(name, policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: name})
				p.Spec.PropagateDeps, p.Spec.Placement.ClusterAffinity = true, w.only(letter)
				w.create(p)
			}
			api, web := deployment("api", 1, nil), deployment("web", 1, nil)
			uses(api, "conf")
			uses(web, "conf")
			w.create(api)
			w.create(web)
			b := w.waitPlaced("web-deployment", "a=1", scheduled)
			follows := w.waitPlaced("conf-configmap", "a b", scheduled)
			needed := []workv1alpha2.OrphaningTemplate{{Group: "apps", Kind: "Deployment", Name: "web", Clusters: []string{w.namespace + "-a"}}}
			says := func(what, clusters string, want []workv1alpha2.OrphaningTemplate) {
				t.Helper()
				w.eventually(what, func() error {
					now := w.binding("conf-configmap")
					if got := now.Spec.RequiredByOrphans; !cmp.Equal(got, want) || now.UID != follows.UID {
						return fmt.Errorf("it says %+v", got)
					}
					return nil
				})
				w.waitPlaced("conf-configmap", clusters, scheduled)
			}

			if err := w.client.Delete(w.ctx, web, client.PropagationPolicy(orphan)); err != nil {
				t.Fatal(err)
			}
			w.awaitDeletion(b)
			if got := w.binding("conf-configmap").Spec.RequiredByOrphans; !cmp.Equal(got, needed) {
				t.Errorf("once the binding of the template is deleted, that of what follows it says %+v", got)
			}
			w.collect(web)
			w.release(b)
			says("it stays where the pods are", "b -a", needed)

			again := deployment("web", 1, nil)
			uses(again, "conf")
			w.create(again)
			b = w.waitPlaced("web-deployment", "a=1", scheduled)
			says("the template is there again", "a b", nil)
			w.delete(again)
			w.awaitDeletion(b)
			w.release(b)
			says("nothing is left that needs it", "b -a", nil)
		})
	}
}

// TestOrphaningTemplatesAreBounded: a binding names a bounded number of templates. One more
// entry has the clusters of all others.
func TestOrphaningTemplatesAreBounded(t *testing.T) {
	all := map[binding.Template]sets.Set[string]{}
	for i := range mostOrphans + 2 {
		k := templateOf(workload("Deployment", nil))
		k.Name = fmt.Sprintf("web-%02d", i)
		all[k] = sets.New(fmt.Sprintf("oak-%02d", i), "elm")
	}
	got := orphaningTemplates(all)
	last := got[len(got)-1]
	if want := []string{"elm", "oak-20", "oak-21"}; len(got) != mostOrphans+1 || last.Kind != "" || !cmp.Equal(last.Clusters, want) {
		t.Errorf("%d entries, the last of them %+v, want one of %v", len(got), last, want)
	}
	again := map[binding.Template]sets.Set[string]{}
	for _, o := range got {
		again[orphaning("shop", o)] = sets.New(o.Clusters...)
	}
	if diff := cmp.Diff(got, orphaningTemplates(again)); diff != "" {
		t.Errorf("read and written again (-want +got):\n%s", diff)
	}
}

// TestADeletionSaysForWhatItWaits: a deletion with propagation Orphan waits while the binding
// of a dependency cannot be written. It reports that, the reason and what to do, and continues
// once the binding can be written.
func TestADeletionSaysForWhatItWaits(t *testing.T) {
	w := newWorld(t, 1)
	w.stop()
	w.waitPatience = 0
	w.start()
	w.create(configMap("conf"))
	p := w.policy("p", deployments())
	p.Spec.PropagateDeps = true
	w.create(p)
	web := deployment("web", 1, nil)
	uses(web, "conf")
	w.create(web)
	b := w.waitPlaced("web-deployment", "a=1", scheduled)
	follows := w.waitPlaced("conf-configmap", "a", scheduled)

	refused := w.refuse("conf-configmap")
	if err := w.client.Delete(w.ctx, web, client.PropagationPolicy(orphan)); err != nil {
		t.Fatal(err)
	}
	w.collect(web)
	w.eventually("the deletion says for what it waits", func() error {
		text := w.controller.DeletionWait(b.UID)
		for _, part := range []string{"ConfigMap " + w.namespace + "/conf", "frozen by a test", "delete the binding web-deployment"} {
			if !strings.Contains(text, part) {
				return fmt.Errorf("%q does not say %q", text, part)
			}
		}
		return nil
	})
	if now := w.binding(b.Name); now == nil || !now.DeletionTimestamp.IsZero() {
		t.Fatal("its copies are deleted before what they need is kept")
	}
	w.delete(refused)
	w.awaitDeletion(b)
	if now := w.binding("conf-configmap"); now.UID != follows.UID || !now.Spec.PreserveResourcesOnDeletion {
		t.Errorf("the binding of what follows says %+v", now.Spec)
	}
	w.release(b)
	w.release(follows)
}

// refuse makes the hub refuse each change of a binding, until the returned object is deleted.
func (w *world) refuse(name string) client.Object {
	w.t.Helper()
	id := w.namespace + "-" + name
	w.create(&admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": w.namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					ResourceNames: []string{name},
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{workv1alpha2.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"resourcebindings"},
						},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "frozen by a test"}},
		},
	})
	bound := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: id, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	w.create(bound)
	w.eventually("changes of "+name+" are refused", func() error {
		o := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
		err := w.client.Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`)), client.DryRunAll)
		if err == nil {
			return errors.New("they are not")
		}
		if !strings.Contains(err.Error(), "frozen by a test") {
			return err
		}
		return nil
	})
	return bound
}

// TestErrorsOfWritesAreForgotten: the error of a write is dropped when a later write succeeds,
// or when the binding is gone.
func TestErrorsOfWritesAreForgotten(t *testing.T) {
	b := &workv1alpha2.ResourceBinding{}
	b.Namespace, b.Spec.Resource = "shop", workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "conf"}
	k := binding.TemplateOf(b)
	w := newOrphanWaits()
	for name, end := range map[string]func(){
		"Written":  func() { w.wrote(k, nil) },
		"NotFound": func() { w.wrote(k, apierrors.NewNotFound(schema.GroupResource{Resource: "resourcebindings"}, "conf")) },
		"Gone":     func() { w.forget(b) },
	} {
		w.wrote(k, errors.New("refused"))
		if w.failed[k] != "refused" {
			t.Fatalf("%s: the error is %q", name, w.failed[k])
		}
		if end(); len(w.failed) != 0 {
			t.Errorf("%s: %v is kept", name, w.failed)
		}
	}
}
