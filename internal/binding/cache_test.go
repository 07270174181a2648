package binding

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

var web = Template{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web"}

func bound(name string, uid types.UID, age time.Duration, clusters ...string) *workv1alpha2.ResourceBinding {
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: uid, CreationTimestamp: metav1.NewTime(time.Unix(1000, 0).Add(-age)),
		},
		Spec: workv1alpha2.BindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
	}
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c})
	}
	return b
}

// A user's duplicate of a binding must not hide the template's own one. This holds for both
// orders in which the cache sees them, and whether the duplicate stays or goes.
func TestATemplatesBindingIsFoundBesideADuplicate(t *testing.T) {
	ours, older := bound("web-deployment", "ours", time.Hour), bound("copy", "copy", 2*time.Hour)
	for name, order := range map[string][]*workv1alpha2.ResourceBinding{
		"OursFirst": {ours, older}, "DuplicateFirst": {older, ours},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache()
			for _, b := range order {
				c.changed(nil, b)
			}
			if b, others := c.Of(web); b != ours || len(others) != 1 || others[0] != older {
				t.Errorf("found %v beside %v", b, others)
			}
			c.changed(older, nil)
			if b, others := c.Of(web); b != ours || len(others) != 0 {
				t.Errorf("once the duplicate is gone found %v beside %v", b, others)
			}
			c.changed(ours, nil)
			if b, _ := c.Of(web); b != nil || len(c.Templates()) != 0 {
				t.Errorf("once all are gone found %v", b)
			}
		})
	}
}

func TestOldestOfMisnamedBindings(t *testing.T) {
	c := newCache()
	older, newer := bound("a", "a", time.Hour), bound("b", "b", time.Minute)
	c.changed(nil, newer)
	c.changed(nil, older)
	if b, _ := c.Of(web); b != older {
		t.Errorf("found %s", b.Name)
	}
}

func TestCache(t *testing.T) {
	c := newCache()
	type event struct{ before, after *workv1alpha2.ResourceBinding }
	var events []event
	c.Subscribe(func(before, after *workv1alpha2.ResourceBinding) { events = append(events, event{before, after}) })

	first := bound("web-deployment", "1", 0, "a", "b")
	c.changed(nil, first)
	moved := bound("web-deployment", "1", 0, "b")
	moved.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "c"}}
	c.changed(first, moved)
	in := func() (all []string) {
		for _, cluster := range []string{"a", "b", "c"} {
			if len(c.In(cluster)) > 0 {
				all = append(all, cluster)
			}
		}
		return all
	}
	if diff := cmp.Diff([]string{"b", "c"}, in()); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	if b, ok := c.ByUID("1"); !ok || b != moved {
		t.Errorf("by UID found %v", b)
	}

	// If a binding is deleted and created again between two events, subscribers see a deletion,
	// then a creation.
	again := bound("web-deployment", "2", 0, "a")
	c.changed(moved, again)
	if !slices.Equal(events, []event{{nil, first}, {first, moved}, {moved, nil}, {nil, again}}) {
		t.Errorf("events %v", events)
	}
	if _, ok := c.ByUID("1"); ok {
		t.Error("the first binding is still found")
	}
	if b, ok := c.Get(Name(again)); !ok || b != again {
		t.Errorf("found %v", b)
	}
	if diff := cmp.Diff([]string{"a"}, in()); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
}

func TestFreeName(t *testing.T) {
	c := newCache()
	if got := c.FreeName(web); got != "web-deployment" {
		t.Errorf("name %s", got)
	}
	other := bound("web-deployment", "other", 0)
	other.Spec.Resource.Kind = "StatefulSet"
	c.changed(nil, other)
	if got := c.FreeName(web); got == "web-deployment" || got != c.FreeName(web) {
		t.Errorf("name %s", got)
	}
}
