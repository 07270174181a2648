package spine

import (
	"testing"
	"time"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// kept waits until a namespace in a member is left without our mark.
func (w *world) kept(m *testenv.Member) {
	w.Helper()
	w.eventually("namespace "+w.ns+" is kept in "+m.Name+" without our mark", func() error {
		ns, err := m.Find(w.Context(), "v1", "Namespace", "", w.ns)
		if err != nil {
			w.Fatal(err)
		}
		if !ns.GetDeletionTimestamp().IsZero() {
			w.Fatalf("%s: namespace %s is being deleted", m.Name, w.ns)
		}
		if mark := ns.GetLabels()[workv1alpha2.NamespaceLabel]; mark != "" {
			return errorf("it has the mark %s", mark)
		}
		return nil
	})
	w.namespaceNotDeleted(m)
}

func (w *world) namespaceNotDeleted(m *testenv.Member) {
	w.Helper()
	for _, r := range w.writes(m) {
		if r.Resource == "namespaces" && r.Verb == "delete" {
			w.Errorf("%s: %s", m.Name, r)
		}
	}
}

// TestNamespaceWithForeignContent deletes a hub's namespace that has foreign things in a member.
func TestNamespaceWithForeignContent(t *testing.T) {
	for name, foreign := range map[string]func(ns string) string{
		"ConfigMap":  func(ns string) string { return configMap(ns, "local-owner", "theirs") },
		"Claim":      func(ns string) string { return claim(ns, "local-disk") },
		"Deployment": func(ns string) string { return deployment(ns, "local-db", 1) },
		"Service":    func(ns string) string { return service(ns, "local") },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, "foreign-"+lower(name))
			w.hub.Apply(t, policy(w.ns, "all", everything, in("oak"))+deployment(w.ns, "web", 1)+service(w.ns, "web"))
			w.available(w.oak, "web", 1)
			w.oak.Apply(t, foreign(w.ns))
			before := w.content(w.oak)
			delete(before, "Deployment/web")
			delete(before, "Service/web")
			w.hub.Remove(t, "v1", "Namespace", "", w.ns)
			w.gone(w.oak, "apps/v1", "Deployment", "web")
			w.gone(w.oak, "v1", "Service", "web")
			w.kept(w.oak)
			w.stays(w.oak, before)
		})
	}
}

// TestNamespaceOfOursAlone deletes a hub's namespace whose copies have what placed objects and
// Kubernetes itself made: Pods, ReplicaSets, Endpoints, Events, the default ServiceAccount. It goes.
func TestNamespaceOfOursAlone(t *testing.T) {
	w := start(t, "ours-alone")
	w.hub.Apply(t, policy(w.ns, "all", everything, in("oak", "pine"))+deployment(w.ns, "web", 2)+service(w.ns, "web")+configMap(w.ns, "settings", "one"))
	w.available(w.oak, "web", 2)
	w.available(w.pine, "web", 2)
	w.hub.Remove(t, "v1", "Namespace", "", w.ns)
	w.gone(w.oak, "v1", "Namespace", w.ns)
	w.gone(w.pine, "v1", "Namespace", w.ns)
	// What was placed goes by its own deletion, the namespace last.
	for _, m := range []*testenv.Member{w.oak, w.pine} {
		deletions := []string{}
		for _, r := range w.writes(m) {
			if r.Verb == "delete" {
				deletions = append(deletions, r.Resource)
			}
		}
		if len(deletions) != 4 || deletions[3] != "namespaces" {
			t.Errorf("%s: deleted in this order: %v", m.Name, deletions)
		}
	}
}

// TestPlacedNamespaceMoves takes a cluster out of the placement of a Namespace itself.
func TestPlacedNamespaceMoves(t *testing.T) {
	move := func(w *world, clusters ...string) {
		w.hub.Apply(w, clusterPolicy(w.ns, "{apiVersion: v1, kind: Namespace, name: "+w.ns+"}", in(clusters...)))
		w.Cleanup(func() { w.hub.Remove(w, "policy.orrery.dev/v1alpha1", "ClusterPropagationPolicy", "", w.ns) })
	}
	begin := func(t *testing.T, ns string) *world {
		w := start(t, ns)
		move(w, "oak", "pine")
		w.eventually("the namespace is in pine", func() error {
			_, err := w.pine.Find(t.Context(), "v1", "Namespace", "", w.ns)
			return err
		})
		return w
	}
	t.Run("WithForeignContent", func(t *testing.T) {
		w := begin(t, "moves-foreign")
		w.pine.Apply(t, configMap(w.ns, "local-owner", "theirs"))
		before := w.content(w.pine)
		move(w, "oak")
		w.moved("ClusterResourceBinding", w.ns+"-namespace", "oak")
		w.kept(w.pine)
		w.stays(w.pine, before)
	})
	t.Run("WithWhatAnotherPolicyPlaces", func(t *testing.T) {
		w := begin(t, "moves-placed")
		w.hub.Apply(t, policy(w.ns, "all", everything, in("oak", "pine"))+deployment(w.ns, "web", 1)+claim(w.ns, "disk"))
		w.available(w.pine, "web", 1)
		w.placed(w.pine, "v1", "PersistentVolumeClaim", "disk")
		before := w.content(w.pine)
		move(w, "oak")
		w.moved("ClusterResourceBinding", w.ns+"-namespace", "oak")
		w.quiet(3 * time.Second)
		w.noDeletions(w.pine, w.marks["pine"])
		w.stays(w.pine, before)
		w.applied("Deployment", "web")
	})
	t.Run("Empty", func(t *testing.T) {
		w := begin(t, "moves-empty")
		move(w, "oak")
		w.gone(w.pine, "v1", "Namespace", w.ns)
	})
	t.Run("BindingDeletedByHand", func(t *testing.T) {
		w := begin(t, "binding-deleted")
		w.hub.Apply(t, policy(w.ns, "all", everything, in("oak", "pine"))+deployment(w.ns, "web", 1))
		w.available(w.pine, "web", 1)
		before := w.content(w.pine)
		// The policy goes first, so that the binding is not made again.
		w.hub.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterPropagationPolicy", "", w.ns)
		w.condition("work.orrery.dev/v1alpha2", "ClusterResourceBinding", "", w.ns+"-namespace", "Scheduled=True/PolicyGone")
		w.hub.Remove(t, "work.orrery.dev/v1alpha2", "ClusterResourceBinding", "", w.ns+"-namespace")
		w.quiet(3 * time.Second)
		w.noDeletions(w.pine, w.marks["pine"])
		w.stays(w.pine, before)
	})
}

// TestHubNamespaceRestart deletes a namespace on the hub while the hub's server is restarted:
// what it has not seen yet of a member is not taken for nothing.
func TestHubNamespaceRestart(t *testing.T) {
	w := start(t, "restart-namespace")
	w.hub.Apply(t, policy(w.ns, "all", everything, in("oak"))+deployment(w.ns, "web", 1))
	w.available(w.oak, "web", 1)
	w.oak.Apply(t, claim(w.ns, "local-disk"))
	w.hub.Remove(t, "v1", "Namespace", "", w.ns)
	w.hub.Kill()
	w.restart()
	w.gone(w.oak, "apps/v1", "Deployment", "web")
	w.kept(w.oak)
}
