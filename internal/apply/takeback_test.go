package apply

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// replaced deletes an object in a cluster and creates it again as it was, with a patch.
func (f *fleet) replaced(c client.Client, o *unstructured.Unstructured, patch string) *unstructured.Unstructured {
	f.t.Helper()
	saved := f.live(c, o)
	f.must(c.Delete(f.t.Context(), saved.DeepCopy()))
	saved.SetManagedFields(nil)
	return f.has(c, f.patched(saved, patch), "kubectl-create")
}

// An orphan becomes a copy again. An object that others created with the name and the marks of
// an orphan does not: it is adopted if it is equal to its template, and a conflict otherwise.
func TestAnOrphanThatWasCreatedAgainIsJudged(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	oak := f.client(testenv.Config(oakServer))
	ns := f.adoptable(oak)
	template := func(kind, name, rest string) *unstructured.Unstructured {
		return f.manifestOf(ns, `{apiVersion: v1, kind: `+kind+`, metadata: {name: `+name+`, namespace: NAMESPACE}`+rest+`}`)
	}
	left, account := template("ConfigMap", "left", `, data: {a: "1"}`), template("ServiceAccount", "account", "")
	equal, other := template("ConfigMap", "equal", `, data: {a: "1"}`), template("ConfigMap", "other", `, data: {a: "1"}`)
	bindings := map[string]*workv1alpha2.ResourceBinding{}
	for _, o := range []*unstructured.Unstructured{left, account, equal, other} {
		bindings[o.GetName()] = f.bind(o, nil, "oak")
		f.result(bindings[o.GetName()], "oak", workv1alpha2.ReasonFullyApplied)
	}
	f.unjoin("oak")
	f.replaced(oak, equal, "{}")
	theirs := f.replaced(oak, other, `{data: {a: "2", b: "3"}}`)
	if theirs.GetAnnotations()[workv1alpha2.OrphanAnnotation] == "" {
		t.Fatalf("its annotations are %v", theirs.GetAnnotations())
	}

	f.join("oak", testenv.Kubeconfig(oakServer))
	f.result(bindings["other"], "oak", workv1alpha2.ReasonConflict)
	if now := f.live(oak, other); now.GetResourceVersion() != theirs.GetResourceVersion() {
		t.Errorf("it was written: %v", now.Object)
	}
	for o, origin := range map[*unstructured.Unstructured]string{left: "", account: "", equal: workv1alpha2.OriginAdopted} {
		f.result(bindings[o.GetName()], "oak", workv1alpha2.ReasonFullyApplied)
		now := f.live(oak, o)
		is := map[string]string{
			"binding": now.GetLabels()[workv1alpha2.BindingLabel], "origin": now.GetAnnotations()[workv1alpha2.OriginAnnotation],
			"orphan": now.GetAnnotations()[workv1alpha2.OrphanAnnotation],
		}
		if diff := cmp.Diff(map[string]string{"binding": string(bindings[o.GetName()].UID), "origin": origin, "orphan": ""}, is); diff != "" {
			t.Errorf("%s (-want +got):\n%s", o.GetName(), diff)
		}
	}
	f.unjoin("oak")
}

// An object that becomes a copy with more replicas than the share of its cluster keeps them
// until they are available elsewhere. One case is a copy that was created again with its marks,
// the other an unmanaged object that a policy takes over.
func TestWhatIsTakenBackLosesNoAvailableReplica(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("elm", testenv.Kubeconfig(elmServer))
	f.join("oak", testenv.Kubeconfig(oakServer))
	elm, oak := f.client(testenv.Config(elmServer)), f.client(testenv.Config(oakServer))
	shares := map[string]int32{"elm": 1, "oak": 2}
	for name, begin := range map[string]func(template *unstructured.Unstructured) *workv1alpha2.ResourceBinding{
		"MadeAnew": func(template *unstructured.Unstructured) *workv1alpha2.ResourceBinding {
			ns := template.GetNamespace()
			b := f.bind(template, func(s *workv1alpha2.BindingSpec) { set(s, shares, nil) })
			f.becomesAvailable(oak, ns, "web", 2, 2)
			f.becomesAvailable(elm, ns, "web", 1, 0)
			f.stop()
			f.replaced(oak, template, `{spec: {replicas: 3}}`)
			f.becomesAvailable(oak, ns, "web", 3, 3)
			f.start()
			return b
		},
		"TakenOver": func(template *unstructured.Unstructured) *workv1alpha2.ResourceBinding {
			f.has(oak, template, "kubectl-create")
			f.becomesAvailable(oak, template.GetNamespace(), "web", 3, 3)
			return f.bind(template, func(s *workv1alpha2.BindingSpec) {
				set(s, shares, nil)
				overwrites(s)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = f.whole }()
			ns := f.adoptable(oak)
			template := deployment(ns, "web", 3, "i:1")
			template.SetUID(types.UID("template-" + ns))
			b := begin(template)
			f.eventually("oak waits for elm", func() error {
				if waiting := f.applier.Waiting(b.UID); !slices.Equal(waiting, []string{"oak"}) {
					return fmt.Errorf("these wait: %v", waiting)
				}
				return f.appliedDigest(b, "oak", "")
			})
			now := &appsv1.Deployment{}
			f.must(oak.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, now))
			if *now.Spec.Replicas != 3 {
				t.Errorf("oak has %d replicas while none serves in elm", *now.Spec.Replicas)
			}
			f.becomesAvailable(elm, ns, "web", 1, 1)
			f.becomesAvailable(oak, ns, "web", 2, 2)
			f.must(f.hub.Delete(t.Context(), b))
			f.gone(f.hub, b)
		})
	}
	f.unjoin("elm")
	f.unjoin("oak")
}

// An orphan whose annotation belongs to another manager was created again. If managedFields
// were lost, it was created again only if its source is not verified.
func TestIsRecreated(t *testing.T) {
	const owns = `{"f:metadata":{"f:annotations":{"f:` + workv1alpha2.OrphanAnnotation + `":{}}}}`
	for name, tc := range map[string]struct {
		managers             []string
		verified, unverified bool
	}{
		"TheHub":           {[]string{workv1alpha2.FieldManager}, false, false},
		"TheHubAndAnother": {[]string{"kubectl", workv1alpha2.FieldManager}, false, false},
		"Another":          {[]string{"kubectl-create"}, true, true},
		"Nobody":           {nil, false, true},
		"BeforeFirstApply": {[]string{"before-first-apply"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{Object: map[string]any{}}
			var entries []metav1.ManagedFieldsEntry
			for _, manager := range tc.managers {
				entries = append(entries, metav1.ManagedFieldsEntry{
					Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(owns),
				})
			}
			o.SetManagedFields(entries)
			if is := isRecreated(o, true); is != tc.verified {
				t.Errorf("with a verified source: %t", is)
			}
			if is := isRecreated(o, false); is != tc.unverified {
				t.Errorf("without: %t", is)
			}
		})
	}
}
