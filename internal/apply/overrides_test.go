package apply

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/render"
)

// TestOverridesLookOnlyAtWhatTheyCanMean: a change of one override policy examines only
// templates that it may select. The test counts them, among 5,000 in two namespaces.
func TestOverridesLookOnlyAtWhatTheyCanMean(t *testing.T) {
	const many = 5000
	scheme := runtime.NewScheme()
	if err := workv1alpha2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: scheme}
	bindings, err := binding.NewCache(t.Context(), informers)
	if err != nil {
		t.Fatal(err)
	}
	hears, err := informers.FakeInformerFor(t.Context(), &workv1alpha2.ResourceBinding{})
	if err != nil {
		t.Fatal(err)
	}
	templates := &source{all: map[string]*unstructured.Unstructured{}}
	for i := range many {
		ns := "many"
		if i%1000 == 0 {
			ns = "few" // five templates
		}
		o := configMap(ns, fmt.Sprint("a", i), "1")
		if i%100 == 0 {
			o.SetLabels(map[string]string{"app": "x"})
		}
		templates.set(o)
		b := &workv1alpha2.ResourceBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: o.GetName(), UID: types.UID(fmt.Sprint(i))},
			Spec:       workv1alpha2.BindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.GetName()}},
		}
		if i == 7 {
			b.Spec.DependentOverrides = []workv1alpha2.OverrideReference{{Kind: "ClusterOverridePolicy", Name: "needed"}}
		}
		hears.Add(b)
	}
	a := &Applier{dependencies: dependencies{bindings: bindings, templates: templates}}
	selector := func(namespace, name string, labels map[string]string) policyv1alpha1.ResourceSelector {
		s := policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name}
		if labels != nil {
			s.LabelSelector = &metav1.LabelSelector{MatchLabels: labels}
		}
		return s
	}
	secret := selector("", "", nil)
	secret.Kind = "Secret"
	for name, tc := range map[string]struct {
		namespace, name string
		selectors       []policyv1alpha1.ResourceSelector
		looked, touched int
	}{
		"Named":                    {"many", "o", []policyv1alpha1.ResourceSelector{selector("", "a1", nil)}, 1, 1},
		"NamedTwice":               {"many", "o", []policyv1alpha1.ResourceSelector{selector("", "a1", nil), selector("", "a2", nil)}, 2, 2},
		"NamedThatIsElsewhere":     {"few", "o", []policyv1alpha1.ResourceSelector{selector("", "a1", nil)}, 0, 0},
		"NamedByAClusterPolicy":    {"", "o", []policyv1alpha1.ResourceSelector{selector("many", "a1", nil)}, 1, 1},
		"NamedInAnyNamespace":      {"", "o", []policyv1alpha1.ResourceSelector{selector("", "a1", nil)}, 1, 1},
		"OfANamespace":             {"few", "o", nil, 5, 5},
		"OfAKindInANamespace":      {"few", "o", []policyv1alpha1.ResourceSelector{selector("", "", nil)}, 5, 5},
		"ByLabelsInANamespace":     {"few", "o", []policyv1alpha1.ResourceSelector{selector("", "", map[string]string{"app": "y"})}, 5, 0},
		"ByLabels":                 {"", "o", []policyv1alpha1.ResourceSelector{selector("", "", map[string]string{"app": "x"})}, many, 50},
		"OfAKindThatIsNotPlaced":   {"", "o", []policyv1alpha1.ResourceSelector{secret}, 0, 0},
		"OneThatIsNeededSelectsNo": {"", "needed", []policyv1alpha1.ResourceSelector{secret}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := override(tc.namespace, tc.name, "1", "")
			o.Spec.ResourceSelectors = tc.selectors
			before, touched := a.looked.Load(), map[types.UID]bool{}
			a.touched([]*render.Override{render.Compile(o)}, func(b *workv1alpha2.ResourceBinding) {
				if touched[b.UID] {
					t.Errorf("%s is told of twice", b.Name)
				}
				touched[b.UID] = true
			})
			if looked := int(a.looked.Load() - before); looked != tc.looked || len(touched) != tc.touched {
				t.Errorf("%d templates were looked at and %d bindings touched, want %d and %d", looked, len(touched), tc.looked, tc.touched)
			}
		})
	}
}
