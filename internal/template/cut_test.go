package template

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// TestLost: fields of an object are lost in a version if the schema of that version drops them
// and the other schema keeps them, unless they have the default value.
func TestLost(t *testing.T) {
	read := func(text string) map[string]any {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	const size = `size: {type: integer}`
	for name, tc := range map[string]struct {
		own, other, object string
		want               []string
	}{
		"AField":          {size, size + `, color: {type: string}`, `{size: 1, color: blue}`, []string{"spec.color"}},
		"NotSet":          {size, size + `, color: {type: string}`, `{size: 1}`, nil},
		"ADefault":        {size, size + `, color: {type: string, default: red}`, `{size: 1, color: red}`, nil},
		"NoDefault":       {size, size + `, color: {type: string, default: red}`, `{size: 1, color: blue}`, []string{"spec.color"}},
		"DefaultsInside":  {size, size + `, paint: {type: object, properties: {color: {default: red}, coats: {default: 2}}}`, `{paint: {color: red, coats: 2}}`, nil},
		"InAnElement":     {`parts: {items: {properties: {name: {}}}}`, `parts: {items: {properties: {name: {}, color: {}}}}`, `{parts: [{name: a}, {name: b, color: blue}]}`, []string{"spec.parts[1].color"}},
		"InAMap":          {`parts: {additionalProperties: {properties: {name: {}}}}`, `parts: {additionalProperties: {properties: {name: {}, color: {}}}}`, `{parts: {a: {color: blue}}}`, []string{"spec.parts.a.color"}},
		"KeptAsUnknown":   {`parts: {x-kubernetes-preserve-unknown-fields: true}`, `parts: {properties: {color: {}}}`, `{parts: {color: blue}}`, nil},
		"UnknownToBoth":   {`parts: {properties: {name: {}}}`, `parts: {x-kubernetes-preserve-unknown-fields: true}`, `{parts: {color: blue}}`, []string{"spec.parts.color"}},
		"TheOtherHasLess": {size + `, color: {type: string}`, size, `{size: 1}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			definition := &unstructured.Unstructured{Object: read(`{spec: {conversion: {strategy: None}, versions: [
				{name: v1alpha1, served: true, schema: {openAPIV3Schema: {properties: {spec: {properties: {` + tc.own + `}}, status: {}}}}},
				{name: v1, served: true, schema: {openAPIV3Schema: {properties: {spec: {properties: {` + tc.other + `}}, status: {properties: {more: {}}}}}}},
				{name: v2, served: false, schema: {openAPIV3Schema: {properties: {all: {}}}}}]}}`)}
			gvk := schema.GroupVersionKind{Group: "example.org", Version: "v1alpha1", Kind: "Gadget"}
			found := widerVersions(definition, gvk)
			var paths []string
			for _, w := range found {
				if w.gvk.Version != "v1" {
					t.Errorf("%s has more", w.gvk)
				}
				paths = append(paths, lost("", w.other, w.own, read(`{apiVersion: example.org/v1, kind: Gadget, metadata: {name: g}, status: {more: 1}, spec: `+tc.object+`}`))...)
			}
			if !slices.Equal(paths, tc.want) || len(found) == 0 && name != "KeptAsUnknown" && name != "TheOtherHasLess" {
				t.Errorf("lost: %v in %d versions, want %v", paths, len(found), tc.want)
			}
			definition.Object["spec"].(map[string]any)["conversion"] = map[string]any{"strategy": "Webhook"}
			if found := widerVersions(definition, gvk); len(found) > 0 {
				t.Errorf("%v have more though they are converted", found)
			}
		})
	}
}

// TestVersionsForComparison: Versions leaves out a version that is watched only for comparison,
// until Watch is called for it.
func TestVersionsForComparison(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "example.org", Version: "v1alpha1", Kind: "Gadget"}
	other := gvk.GroupKind().WithVersion("v1")
	c := &Cache{kinds: map[schema.GroupVersionKind]*kind{}}
	if err := c.Watch(gvk); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.watched(other)
	c.mu.Unlock()
	if versions := c.Versions(gvk.GroupKind()); !slices.Equal(versions, []schema.GroupVersionKind{gvk}) {
		t.Errorf("versions are %v", versions)
	}
	if err := c.Watch(other); err != nil {
		t.Fatal(err)
	}
	if versions := c.Versions(gvk.GroupKind()); !slices.Equal(versions, []schema.GroupVersionKind{other, gvk}) {
		t.Errorf("versions are %v", versions)
	}
}

// TestCutIsUnknownUntilAllVersionsAre: the lost fields are unknown until the versions are
// compared, and until the cache has the template at the same resourceVersion in all of them.
func TestCutIsUnknownUntilAllVersionsAre(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "example.org", Version: "v1alpha1", Kind: "Gadget"}
	object := func(version, resourceVersion string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"color": "blue"}}}
		o.SetGroupVersionKind(gvk.GroupKind().WithVersion(version))
		o.SetName("g")
		o.SetUID("u")
		o.SetResourceVersion(resourceVersion)
		return o
	}
	own, other := &kind{gvk: gvk}, &kind{gvk: gvk.GroupKind().WithVersion("v1")}
	c := &Cache{kinds: map[schema.GroupVersionKind]*kind{own.gvk: own, other.gvk: other}}
	says := func(when, want string, wantKnown bool) {
		t.Helper()
		if message, known := c.Cut(object("v1alpha1", "2")); known != wantKnown || !strings.HasPrefix(message, want) || want == "" && message != "" {
			t.Errorf("%s: known %t: %q", when, known, message)
		}
	}
	says("not compared", "", false)
	own.compared = true
	says("no version has more", "", true)
	own.wider = []wider{{gvk: other.gvk, other: openSchema{"x-kubernetes-preserve-unknown-fields": true}, own: openSchema{"properties": map[string]any{"spec": map[string]any{}}}}}
	says("the other version is not listed", "", false)
	other.informer = cache.NewSharedIndexInformer(&cache.ListWatch{}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	for _, resourceVersion := range []string{"1", "2"} {
		if err := other.informer.GetIndexer().Add(object("v1", resourceVersion)); err != nil {
			t.Fatal(err)
		}
		if resourceVersion == "1" {
			says("the other version is older", "", false)
		}
	}
	says("all is known", "spec.color, set in example.org/v1,", true)
}
