package search

import (
	"encoding/json"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// define gives a cluster a definition of gadgets in a version, whose spec has a field.
func (f *fleet) define(t *testing.T, cluster, version, field string) {
	t.Helper()
	o := newObject(definitionKind, "", "gadgets.example.org")
	o.Object["spec"] = map[string]any{
		"group": "example.org", "names": map[string]any{"plural": "gadgets", "kind": "Gadget", "listKind": "GadgetList"},
		"versions": []any{map[string]any{"name": version, "schema": map[string]any{"openAPIV3Schema": map[string]any{
			"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{field: map[string]any{"type": "string"}}},
			},
		}}}},
	}
	f.put(t, cluster, "customresourcedefinitions", o)
}

// TestDefinitions: a custom type is described as the cluster defines it that is asked for, and for all clusters as the first one does.
func TestDefinitions(t *testing.T) {
	f := newFleet(t, "ash", "elm", "oak", "yew")
	f.serve(definitionKind, "customresourcedefinitions", false, "ash", "elm", "oak")
	f.serve(gadgetV1, "gadgets", true, "elm", "oak", "yew")
	f.serve(gadgetV2, "gadgets", true, "ash")
	f.serve(podKind, "pods", true, "ash", "elm", "oak", "yew")
	f.define(t, "ash", "v2", "inAsh")
	f.define(t, "elm", "v1", "inElm")
	f.define(t, "oak", "v1", "inOak")
	for name, c := range map[string]struct {
		cluster string
		gv      schema.GroupVersion
		has     string // "": there is no document
	}{
		"First":          {"", gadgetV1.GroupVersion(), "inElm"},
		"OtherVersion":   {"", gadgetV2.GroupVersion(), "inAsh"},
		"OneCluster":     {"oak", gadgetV1.GroupVersion(), "inOak"},
		"NotItsVersion":  {"oak", gadgetV2.GroupVersion(), ""},
		"NoDefinition":   {"yew", gadgetV1.GroupVersion(), ""},
		"NotServed":      {"", schema.GroupVersion{Group: "example.org", Version: "v9"}, ""},
		"KubernetesOwns": {"", podKind.GroupVersion(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			document, err := f.search.Definitions(t.Context(), c.cluster, c.gv)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range []string{"inAsh", "inElm", "inOak"} {
				if strings.Contains(string(text), field) != (field == c.has) {
					t.Errorf("%s: %s, want %q", field, text, c.has)
				}
			}
			if path := `"/apis/example.org/` + c.gv.Version + `/namespaces/{namespace}/gadgets"`; strings.Contains(string(text), path) != (c.has != "") {
				t.Errorf("%s", text)
			}
			if (document == nil) != (c.has == "") {
				t.Errorf("%s", text)
			}
		})
	}
	all, custom, err := f.search.Versions(t.Context(), "")
	if err != nil || len(all) != 4 || len(custom) != 2 {
		t.Errorf("%v %v %v", all, custom, err)
	}
	f.denied = func(authorizationv1.ResourceAttributes) bool { return true }
	for _, cluster := range []string{"oak", "none"} {
		if _, _, err := f.search.Versions(t.Context(), cluster); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", cluster, err)
		}
	}
}
