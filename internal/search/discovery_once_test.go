package search

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestDiscoveryChecksOnce: discovery checks the rights of a caller that may list everything once,
// and not for each custom type. The rights of other callers, and of a hub with other authorizers
// than RBAC, are checked for each type.
func TestDiscoveryChecksOnce(t *testing.T) {
	const custom = 20
	f := threeClusters(t)
	for i := range custom {
		f.serve(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: fmt.Sprintf("Gadget%d", i)}, fmt.Sprintf("gadget%ds", i), true, "elm")
	}
	everything := func(what authorizationv1.ResourceAttributes) bool { return what.Group == "*" && what.Resource == "*" }
	for name, tc := range map[string]struct {
		denied func(authorizationv1.ResourceAttributes) bool
		untold bool
		asked  int
		shown  int
	}{
		"Everything":       {asked: 1, shown: custom},
		"EachType":         {denied: everything, asked: 1 + custom, shown: custom},
		"Nothing":          {denied: func(authorizationv1.ResourceAttributes) bool { return true }, asked: 1 + custom},
		"OtherAuthorizers": {untold: true, asked: custom, shown: custom},
		"OneTypeIsRefused": {untold: true, denied: func(what authorizationv1.ResourceAttributes) bool { return what.Resource == "gadget7s" }, asked: custom, shown: custom - 1},
	} {
		t.Run(name, func(t *testing.T) {
			f.denied, f.search.UntoldRights, f.asked = tc.denied, tc.untold, nil
			resp, body := f.ask(t, http.MethodGet, "/apis/example.org/v1", "")
			if resp.StatusCode != http.StatusOK && tc.shown > 0 {
				t.Errorf("%d %v", resp.StatusCode, body)
			}
			asked := 0
			for _, what := range f.asked {
				if what.Group == "example.org" || everything(what) {
					asked++
				}
			}
			if asked != tc.asked {
				t.Errorf("%d rights were checked, want %d: %v", asked, tc.asked, f.asked)
			}
			if shown := strings.Count(fmt.Sprint(body), "kind:Gadget"); shown != tc.shown {
				t.Errorf("%d types are shown, want %d: %v", shown, tc.shown, body)
			}
		})
	}
}
