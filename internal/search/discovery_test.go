package search

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestTypesAreKnownToThoseWhoMayListThem: every answer to a caller that may not list a custom
// type in any namespace is the same as if no cluster had the type.
func TestTypesAreKnownToThoseWhoMayListThem(t *testing.T) {
	f := threeClusters(t)
	f.serve(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Gadget"}, "gadgets", true, "elm")
	may := func(resources ...string) func(authorizationv1.ResourceAttributes) bool {
		return func(what authorizationv1.ResourceAttributes) bool {
			return !slices.Contains(resources, what.Resource)
		}
	}
	// alike are paths with the name of the type or its group. Each is compared with the same
	// path for a name that does not exist.
	alike := []string{
		"/apis", "/apis/example.org", "/apis/example.org/v1", "/apis/example.org/v1/gadgets", "/apis/example.org/v1/namespaces/shop/gadgets/one", "/clusters/elm/apis", "/clusters/elm/apis/example.org/v1",
		"/search?q=kind:Gadget", "/search?q=kind:example.org/Gadget+name:x", "/search?q=kind:gadgets&group=kind", "/search?q=kind:Gadget&explain=true", "/clusters/elm/search?q=kind:Gadget",
		"/graph?of=gadgets/shop/one", "/graph?of=Gadget/one", "/clusters/elm/graph?of=gadgets/shop/one", collectionPath + "any?groups=example.org", collectionPath + "any?resources=gadgets.example.org,pods",
		"/api/v1/pods?ownerGR=gadgets.example.org&ownerName=one&clusters=elm", "/api/v1/pods?q=kind:Gadget",
	}
	for name, denied := range map[string]func(authorizationv1.ResourceAttributes) bool{"Nobody": may(), "Pods": may("pods"), "Clusters": may("clusters"), "PodsOfANamespace": func(what authorizationv1.ResourceAttributes) bool {
		return what.Resource != "pods" || what.Namespace != "shop"
	}} {
		t.Run(name, func(t *testing.T) {
			f.denied = denied
			f.granted = func(what authorizationv1.ResourceAttributes) []string {
				what.Namespace = "shop"
				if denied(what) {
					return nil
				}
				return []string{"shop"}
			}
			answer := func(path string) string {
				resp, body := f.ask(t, http.MethodGet, path, "")
				text := fmt.Sprint(resp.StatusCode, body, resp.Header["Warning"])
				return strings.NewReplacer("gidget", "gadget", "Gidget", "Gadget", "example.net", "example.org").Replace(text)
			}
			for _, path := range alike {
				hidden := answer(path)
				absent := answer(strings.NewReplacer("gadget", "gidget", "Gadget", "Gidget", "example.org", "example.net").Replace(path))
				if hidden != absent {
					t.Errorf("%s: %s, and where there is none: %s", path, hidden, absent)
				}
			}
			for _, path := range []string{"/apis", "/clusters/elm/apis", "/search?explain=true", "/search?q=-kind:Pod", collectionPath + "kuberesources"} {
				if text := answer(path); strings.Contains(text, "gadget") || strings.Contains(text, "example.org") {
					t.Errorf("%s: %s", path, text)
				}
			}
			if _, custom, err := f.search.Versions(t.Context(), ""); err != nil || len(custom) > 0 {
				t.Errorf("documents of OpenAPI: %v %v", custom, err)
			}
		})
	}
	for name, denied := range map[string]func(authorizationv1.ResourceAttributes) bool{"All": nil, "OfANamespace": may("pods")} {
		f.denied = denied
		f.granted = func(what authorizationv1.ResourceAttributes) []string { return []string{"shop"} }
		_, all := f.ask(t, http.MethodGet, "/apis", "")
		resp, types := f.ask(t, http.MethodGet, "/apis/example.org/v1", "")
		if text := fmt.Sprint(all, types); resp.StatusCode != http.StatusOK || !strings.Contains(text, "example.org") || !strings.Contains(text, "gadgets") {
			t.Errorf("%s: %s", name, text)
		}
		if resp, body := f.ask(t, http.MethodGet, "/search?q=kind:Gadget", ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %v", name, resp.StatusCode, body)
		}
	}
	f.denied, f.granted = nil, nil
	if resp, body := f.ask(t, http.MethodGet, "/search?q=kind:Gidget", ""); resp.StatusCode != http.StatusBadRequest || !strings.Contains(fmt.Sprint(body), "no kind is mirrored") {
		t.Errorf("a caller who may list everything: %d %v", resp.StatusCode, body)
	}
}
