package fleetapi

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/fleet"
)

// TestGenerations: the generation of a namespace changes when it may use other clusters, and
// not when a cluster joins or leaves.
func TestGenerations(t *testing.T) {
	g := newGenerations()
	now := func() string { return fmt.Sprint(g.of("blog"), " ", g.of("shop")) }
	was := now()
	for _, c := range []struct {
		what             string
		change           func()
		blog, shop, none bool
	}{
		{"ClusterAccessOfShop", func() { g.changed(sets.New("shop")) }, false, true, false},
		{"Again", func() { g.changed(sets.New("shop")) }, false, true, false},
		{"Both", func() { g.changed(sets.New("shop", "blog")) }, true, true, false},
		{"Joins", func() {
			g.moved(fleet.Change{Name: "oak", What: fleet.Membership | fleet.Labels, After: &fleet.Cluster{}})
		}, false, false, true},
		{"Leaves", func() {
			g.moved(fleet.Change{Name: "oak", What: fleet.Membership | fleet.Labels, Before: &fleet.Cluster{}})
		}, false, false, true},
		{"Labelled", func() {
			g.moved(fleet.Change{Name: "oak", What: fleet.Labels, Before: &fleet.Cluster{}, After: &fleet.Cluster{}})
		}, true, true, false},
		{"Tainted", func() {
			g.moved(fleet.Change{Name: "oak", What: fleet.Taints, Before: &fleet.Cluster{}, After: &fleet.Cluster{}})
		}, false, false, true},
	} {
		blog, shop := g.of("blog"), g.of("shop")
		c.change()
		if (g.of("blog") != blog) != c.blog || (g.of("shop") != shop) != c.shop || c.none && now() != was {
			t.Errorf("%s: from %s to %s", c.what, was, now())
		}
		was = now()
	}
}
