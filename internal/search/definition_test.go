package search

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// define stores a definition of gadgets in a cluster: with one version, whose spec has one
// field, and with columns at paths.
func (f *fleet) define(t *testing.T, cluster, version, field string, paths ...string) {
	t.Helper()
	columns := []any{}
	for _, path := range paths {
		columns = append(columns, map[string]any{"name": "Of" + cluster, "type": "string", "jsonPath": path})
	}
	o := newObject(definitionKind, "", "gadgets.example.org")
	o.Object["spec"] = map[string]any{
		"group": "example.org", "names": map[string]any{"plural": "gadgets", "kind": "Gadget", "listKind": "GadgetList"},
		"versions": []any{map[string]any{"name": version, "additionalPrinterColumns": columns, "schema": map[string]any{"openAPIV3Schema": map[string]any{
			"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{field: map[string]any{"type": "string"}}},
			},
		}}}},
	}
	f.put(t, cluster, "customresourcedefinitions", o)
}

// TestDefinitions: a custom type is described as in the cluster of the request. Requests for
// all clusters get the definition of the first cluster that has one.
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

// TestDefinitionsOfNoUse: if the definition in one cluster is missing or unusable, that of
// another cluster is used for the fleet.
func TestDefinitionsOfNoUse(t *testing.T) {
	f := newFleet(t, "ash", "elm", "fir", "oak", "yew")
	f.serve(definitionKind, "customresourcedefinitions", false, "ash", "elm", "fir", "oak", "yew")
	f.serve(gadgetV1, "gadgets", true, "ash", "elm", "fir", "oak", "yew")
	broken := newObject(definitionKind, "", "gadgets.example.org")
	broken.Object["spec"] = map[string]any{"versions": "none"}
	f.put(t, "ash", "customresourcedefinitions", broken)
	f.define(t, "elm", "v9", "inElm")
	f.define(t, "fir", "v1", "inFir", ".spec..name")
	f.define(t, "oak", "v1", "inOak", ".spec.size")
	f.define(t, "yew", "v1", "inYew", ".spec.none")
	for _, cluster := range []string{"ash", "oak"} {
		o := newObject(gadgetV1, "shop", "a")
		o.Object["spec"] = map[string]any{"size": "large"}
		f.put(t, cluster, "gadgets", o)
	}
	columns := func(path string) string {
		resp, body := f.ask(t, http.MethodGet, path, tableAccept)
		return fmt.Sprint(resp.StatusCode, body["message"], body["columnDefinitions"], body["rows"])
	}
	if got := columns("/apis/example.org/v1/gadgets"); !strings.Contains(got, "Ofoak") || strings.Count(got, "large") != 2 {
		t.Error(got)
	}
	for _, cluster := range []string{"ash", "elm", "fir"} {
		if got := columns("/clusters/" + cluster + "/apis/example.org/v1/gadgets"); !strings.Contains(got, "Age") || strings.Contains(got, "Of") {
			t.Errorf("%s: %s", cluster, got)
		}
	}
	document, err := f.search.Definitions(t.Context(), "", gadgetV1.GroupVersion())
	if text := fmt.Sprint(document); err != nil || !strings.Contains(text, "inFir") {
		t.Errorf("%v %s", err, text)
	}
}

// TestDefinitionsOfOpenClusters: a caller does not see definitions of clusters that it may not
// use.
func TestDefinitionsOfOpenClusters(t *testing.T) {
	f := newFleet(t, "elm", "oak")
	f.serve(definitionKind, "customresourcedefinitions", false, "elm", "oak")
	f.serve(gadgetV1, "gadgets", true, "elm", "oak")
	f.define(t, "elm", "v1", "inElm")
	f.define(t, "oak", "v1", "inOak")
	f.denied = func(a authorizationv1.ResourceAttributes) bool { return a.Namespace == "" }
	for name, c := range map[string]struct {
		some, closed []string
		has          string
	}{
		"All":     {[]string{"shop"}, nil, "inElm"},
		"OneOpen": {[]string{"shop"}, []string{"elm"}, "inOak"},
		"NoneIs":  {[]string{"shop"}, []string{"elm", "oak"}, ""},
		"NoRight": {nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f.some, f.closed = c.some, map[string][]string{"shop": c.closed}
			document, err := f.search.Definitions(t.Context(), "", gadgetV1.GroupVersion())
			if err != nil || (document == nil) != (c.has == "") {
				t.Fatalf("%v %v", err, document)
			}
			for _, field := range []string{"inElm", "inOak"} {
				if text := fmt.Sprint(document); strings.Contains(text, field) != (field == c.has) {
					t.Errorf("%s: %s, want %q", field, text, c.has)
				}
			}
		})
	}
}

// TestColumnPaths: a path is evaluated only if its cost is bounded by the size of the object.
func TestColumnPaths(t *testing.T) {
	for path, want := range map[string]bool{
		".spec.size": true, ".metadata.annotations['example\\.org/size']": true, ".spec.hosts[*]": true, ".spec.hosts[0].name": true, ".spec.*.name": true,
		`.status.conditions[?(@.type=="Ready")].status`: true,
		"":                         true, // selects nothing
		".spec..name":              false,
		"..":                       false,
		".spec['a..b']":            false,
		".spec[0,0][0,0]":          false,
		".a}{range .items[*]}{.b":  false,
		".a} and {.b":              false,
		`.a[?(@..type=="x")].b`:    false,
		`.a[?(@.type==@..type)].b`: false,
		".spec.size}{end":          false,
		".spec[":                   false,
	} {
		if _, ok := custom([]apiextensionsv1.CustomResourceColumnDefinition{{Name: "A", Type: "string", JSONPath: path}}); ok != want {
			t.Errorf("%s: %t", path, ok)
		}
	}
}
