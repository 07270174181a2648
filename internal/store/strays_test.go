package store

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestStrays: Strays returns types with stored objects that were never saved, but none that is
// being dropped.
func TestStrays(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		saveType(t, s, "a", pods)
		saved, stray, deleted := pod("a", "x", "saved", nil, nil), pod("b", "x", "stray", nil, nil), pod("c", "x", "deleted", nil, nil)
		gadgets := gadget("gadgets")
		gadgets.Cluster = "b"
		write(t, s, saved, stray, deleted, gadgets)
		check(t, s.Write(t.Context(), []Change{{Row: deleted, Delete: true}}))
		allow := refuseDeletions(t, s, "DELETE", "object")
		if err := s.DropType(t.Context(), "b", schema.GroupResource{Group: gadgets.Group, Resource: gadgets.Resource}); err == nil {
			t.Error("the type was dropped")
		}
		got, err := s.Strays(t.Context())
		check(t, err)
		if diff := cmp.Diff([]Stray{{"b", pods}}, got); diff != "" {
			t.Error(diff)
		}
		names, err := s.Clusters(t.Context())
		check(t, err)
		if diff := cmp.Diff([]string{"a", "b", "c"}, names); diff != "" {
			t.Error(diff)
		}
		if err := s.DropCluster(t.Context(), "b"); err == nil {
			t.Error("the cluster was dropped")
		}
		if names, err = s.Clusters(t.Context()); err != nil || !cmp.Equal([]string{"a", "c"}, names) {
			t.Errorf("clusters %v, %v", names, err)
		}
		allow()
		check(t, s.DropCluster(t.Context(), "b"))
		if got, err = s.Strays(t.Context()); err != nil || len(got) > 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}
