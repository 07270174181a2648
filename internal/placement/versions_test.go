package placement

import (
	"errors"
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/presence"
)

// TestPlacedInTheVersionThatThePolicyNames: a template that the hub first saw in another
// version is placed, from its first binding on, in the version that its policy names. Only if
// the hub does not serve that version, it is placed in another.
func TestPlacedInTheVersionThatThePolicyNames(t *testing.T) {
	w := newWorld(t, 1)
	for i, tc := range []struct{ named, want string }{{"v1alpha1", "v1alpha1"}, {"v9", "v1"}} {
		t.Run(tc.named, func(t *testing.T) {
			group := fmt.Sprintf("g%d.%s.example.org", i, w.namespace)
			version := func(name string) apiextensionsv1.CustomResourceDefinitionVersion {
				keeps := true
				return apiextensionsv1.CustomResourceDefinitionVersion{
					Name: name, Served: true, Storage: name == "v1",
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keeps}},
				}
			}
			w.create(&apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: "gears." + group},
				Spec: apiextensionsv1.CustomResourceDefinitionSpec{
					Group: group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gears", Kind: "Gear"},
					Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1"), version("v1alpha1")},
				},
			})
			gear := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": "1"}}}
			gear.SetAPIVersion(group + "/v1")
			gear.SetKind("Gear")
			gear.SetNamespace(w.namespace)
			gear.SetName("g")
			w.eventually("gear", func() error { return w.client.Create(w.ctx, gear) })
			templates := w.controller.templates
			w.eventually("v1 is known", func() error {
				err := templates.Watch(gear.GroupVersionKind())
				if _, state := templates.Get(gear.GroupVersionKind(), w.namespace, "g"); state != presence.Present {
					return errors.Join(err, fmt.Errorf("it is %v", state))
				}
				return nil
			})
			w.create(w.policy("p"+tc.named, policyv1alpha1.ResourceSelector{APIVersion: group + "/" + tc.named, Kind: "Gear"}))
			b := w.waitPlaced("g-gear."+group, "a", scheduled)
			if b.Spec.Resource.APIVersion != group+"/"+tc.want || b.Generation != 1 {
				t.Errorf("the binding is of %s, in generation %d", b.Spec.Resource.APIVersion, b.Generation)
			}
		})
	}
}
