package search

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestNarrowed: one warning names the types that are shown in part.
func TestNarrowed(t *testing.T) {
	pods, secrets := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "secrets"}
	in := func(namespaces ...string) scope {
		return scope{namespaces: namespaces, refused: errors.New("forbidden")}
	}
	for name, tc := range map[string]struct {
		types    map[schema.GroupResource]scope
		unlisted []string
		want     string
	}{
		"Nothing":    {types: map[schema.GroupResource]scope{pods: {}}},
		"One":        {types: map[schema.GroupResource]scope{pods: in("shop", "blog")}, want: "only pods in the namespaces in which you may list them on the hub are shown: blog, shop"},
		"Some":       {types: map[schema.GroupResource]scope{pods: in("shop"), secrets: in("shop")}, want: "only objects in the namespaces in which you may list them on the hub are shown: shop, of pods, secrets"},
		"Differ":     {types: map[schema.GroupResource]scope{pods: in("shop"), secrets: in("blog")}, want: "only objects in the namespaces in which you may list them on the hub are shown: blog, of secrets; shop, of pods"},
		"Unlisted":   {unlisted: []string{"nodes"}, want: "left out, since you may not list them on the hub: nodes"},
		"OneAndNone": {types: map[schema.GroupResource]scope{pods: in("shop")}, unlisted: []string{"nodes"}, want: "only objects in the namespaces in which you may list them on the hub are shown: shop, of pods; left out, since you may not list them on the hub: nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			n := narrowed{}
			for gr, seen := range tc.types {
				n.add(gr, seen)
			}
			if got := n.text(tc.unlisted); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
