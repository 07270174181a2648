package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/access"
)

func namespace(name string, labels map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func clusterAccess(team string, clusters ...string) *policyv1alpha1.ClusterAccess {
	return &policyv1alpha1.ClusterAccess{
		ObjectMeta: metav1.ObjectMeta{Name: team},
		Spec: policyv1alpha1.ClusterAccessSpec{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}},
			ClusterAffinity:   &policyv1alpha1.ClusterAffinity{ClusterNames: clusters},
		},
	}
}

func TestFences(t *testing.T) {
	c := newCache(&members{}, access.None)
	synced := false
	c.synced = []toolscache.InformerSynced{func() bool { return synced }}
	notified := sets.New[string]()
	c.SubscribeFences(func(namespaces sets.Set[string]) { notified = notified.Union(namespaces) })
	c.changed(nil, object("oak", "1", nil))
	c.changed(nil, object("elm", "2", nil))
	open := namespace("open", map[string]string{"team": "a"})
	c.namespaceChanged(nil, open)
	c.namespaceChanged(nil, namespace("shut", nil))
	if err := c.accessChanged(nil, clusterAccess("a", "oak")); err != nil {
		t.Fatal(err)
	}
	if c.Snapshot().Allowed("open", "oak") {
		t.Error("a namespace may use a cluster while nothing is known")
	}
	synced = true
	first := c.Snapshot()
	says := func(what string, s *Snapshot, want map[string]bool) {
		t.Helper()
		got := map[string]bool{}
		for name := range want {
			for _, cluster := range []string{"oak", "elm", "yew"} {
				if s.Allowed(name, cluster) {
					got[name+" in "+cluster] = true
				}
			}
		}
		delete(want, "open")
		delete(want, "shut")
		delete(want, "")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	says("at first", first, map[string]bool{"open": true, "shut": true, "": true, "open in oak": true, " in oak": true, " in elm": true, " in yew": true})
	if again := c.Snapshot(); again != first {
		t.Error("nothing changed, and the snapshot is another")
	}

	notified = sets.New[string]()
	edited := clusterAccess("a", "elm")
	if err := c.accessChanged(clusterAccess("a", "oak"), edited); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sets.New("open"), notified); diff != "" {
		t.Errorf("notified of (-want +got):\n%s", diff)
	}
	second := c.Snapshot()
	says("edited", second, map[string]bool{"open": true, "shut": true, "open in elm": true})
	says("at first, still", first, map[string]bool{"open": true, "shut": true, "open in oak": true})
	if second.Version() <= first.Version() {
		t.Errorf("versions %d, %d", first.Version(), second.Version())
	}
	// A change of a cluster keeps the fences, and so does a new measurement of free capacity.
	c.changed(object("elm", "2", nil), object("elm", "3", nil))
	says("measured", c.Measured(), map[string]bool{"open": true, "open in elm": true})

	notified = sets.New[string]()
	c.namespaceChanged(open, namespace("open", map[string]string{"team": "b"}))
	if diff := cmp.Diff(sets.New("open"), notified); diff != "" {
		t.Errorf("notified of (-want +got):\n%s", diff)
	}
	says("measured with other labels", c.Measured(), map[string]bool{"open": true})
	c.namespaceChanged(open, nil)
	if err := c.accessChanged(edited, nil); err != nil {
		t.Fatal(err)
	}
	says("gone", c.Snapshot(), map[string]bool{"open": true, "shut": true})

	wrong := clusterAccess("b")
	wrong.Spec.NamespaceSelector.MatchLabels["team"] = "not a label"
	if err := c.accessChanged(nil, wrong); err == nil {
		t.Error("what cannot be read is not reported")
	}
}
