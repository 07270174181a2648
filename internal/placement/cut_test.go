package placement

import (
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// TestFieldsThatTheSelectedVersionLacks: a field that the version selected by the policy does
// not have reaches no cluster. The binding reports that until the policy selects a version with
// the field.
func TestFieldsThatTheSelectedVersionLacks(t *testing.T) {
	w := newWorld(t, 1)
	group := w.namespace + ".example.org"
	version := func(name string, fields ...string) apiextensionsv1.CustomResourceDefinitionVersion {
		spec := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		for _, field := range fields {
			spec.Properties[field] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}
		if name == "v1" { // clusters set it as well
			spec.Properties["shape"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"round"`)}}
		}
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: name == "v1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
			}},
		}
	}
	w.create(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gears." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gears", Kind: "Gear"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", "size", "color"), version("v1alpha1", "size")},
		},
	})
	gear := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": "1"}}}
	gear.SetAPIVersion(group + "/v1alpha1")
	gear.SetKind("Gear")
	gear.SetNamespace(w.namespace)
	gear.SetName("g")
	w.eventually("gear", func() error { return w.client.Create(w.ctx, gear) })
	p := w.policy("p", policyv1alpha1.ResourceSelector{APIVersion: group + "/v1alpha1", Kind: "Gear"})
	w.create(p)
	b := w.waitPlaced("g-gear."+group, "a", scheduled)
	says := func(what string, want bool) {
		t.Helper()
		w.eventually(what, func() error {
			if outcome, known := w.controller.Outcome(b.UID); !known || strings.Contains(outcome.Message, "spec.color, set in "+group+"/v1, does not exist in "+group+"/v1alpha1") != want {
				return fmt.Errorf("the condition says (known: %t) %q", known, outcome.Message)
			}
			return nil
		})
	}
	says("nothing is said", false)

	newer := gear.DeepCopy()
	newer.SetAPIVersion(group + "/v1")
	patch := func(spec string) {
		t.Helper()
		if err := w.client.Patch(w.ctx, newer, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`))); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"color":"blue"}`)
	says("the condition names the field", true)
	patch(`{"color":null}`)
	says("the field is gone", false)
	patch(`{"color":"blue"}`)
	says("the condition names the field again", true)

	if err := w.client.Patch(w.ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"resourceSelectors":[{"apiVersion":"`+group+`/v1","kind":"Gear"}]}}`))); err != nil {
		t.Fatal(err)
	}
	says("the policy selects the version that has it", false)
	w.eventually("the binding is of that version", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(b), b); err != nil || b.Spec.Resource.APIVersion != group+"/v1" {
			return fmt.Errorf("it is %s (%w)", b.Spec.Resource.APIVersion, err)
		}
		return nil
	})
}
