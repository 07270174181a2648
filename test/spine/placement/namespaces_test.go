package placement

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// kept waits until a namespace in a member exists without our label.
func kept(w *spine.World, m *testenv.Member) {
	w.Helper()
	w.Eventually("namespace "+w.Namespace+" is kept in "+m.Name+" without our mark", func() error {
		ns, err := m.Find(w.Context(), "v1", "Namespace", "", w.Namespace)
		if apierrors.IsNotFound(err) {
			w.Fatal(err)
		}
		if err != nil {
			return err
		}
		if !ns.GetDeletionTimestamp().IsZero() {
			w.Fatalf("%s: namespace %s is being deleted", m.Name, w.Namespace)
		}
		if mark := ns.GetLabels()[workv1alpha2.NamespaceLabel]; mark != "" {
			return fmt.Errorf("it has the mark %s", mark)
		}
		return nil
	})
	namespaceNotDeleted(w, m)
}

func namespaceNotDeleted(w *spine.World, m *testenv.Member) {
	w.Helper()
	for _, r := range w.Writes(m) {
		if r.Resource == "namespaces" && r.Verb == "delete" {
			w.Errorf("%s: %s", m.Name, r)
		}
	}
}

// TestNamespaceWithForeignContent deletes a namespace of the hub that has unmanaged objects in
// a member.
func TestNamespaceWithForeignContent(t *testing.T) {
	for name, foreign := range map[string]func(ns string) string{
		"ConfigMap":  func(ns string) string { return spine.ConfigMap(ns, "local-owner", "theirs") },
		"Claim":      func(ns string) string { return spine.Claim(ns, "local-disk") },
		"Deployment": func(ns string) string { return spine.Deployment(ns, "local-db", 1) },
		"Service":    func(ns string) string { return spine.Service(ns, "local") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := spine.Start(t, "foreign-"+spine.Lower(name))
			w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.Deployment(w.Namespace, "web", 1)+spine.Service(w.Namespace, "web"))
			w.Available(w.Oak, "web", 1)
			w.Oak.Apply(t, foreign(w.Namespace))
			before := w.Content(w.Oak)
			delete(before, "Deployment/web")
			delete(before, "Service/web")
			w.Hub.Remove(t, "v1", "Namespace", "", w.Namespace)
			w.Gone(w.Oak, "apps/v1", "Deployment", "web")
			w.Gone(w.Oak, "v1", "Service", "web")
			kept(w, w.Oak)
			w.Stays(w.Oak, before)
		})
	}
}

// TestNamespaceOfOursAlone deletes a namespace of the hub that has, in members, only copies and
// the objects that Kubernetes creates for them or for every namespace: Pods, ReplicaSets,
// Endpoints, Events, the default ServiceAccount. The namespace is deleted there, too.
func TestNamespaceOfOursAlone(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "ours-alone")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak", "pine"))+spine.Deployment(w.Namespace, "web", 2)+spine.Service(w.Namespace, "web")+spine.ConfigMap(w.Namespace, "settings", "one"))
	w.Available(w.Oak, "web", 2)
	w.Available(w.Pine, "web", 2)
	w.Applied("Deployment", "web")
	w.Applied("Service", "web")
	w.Applied("ConfigMap", "settings")
	w.Hub.Remove(t, "v1", "Namespace", "", w.Namespace)
	w.Gone(w.Oak, "v1", "Namespace", w.Namespace)
	w.Gone(w.Pine, "v1", "Namespace", w.Namespace)
	// Each copy is deleted by a request of its own, the namespace last.
	for _, m := range []*testenv.Member{w.Oak, w.Pine} {
		deletions := []string{}
		// A deletion whose answer was lost is sent again.
		for _, r := range spine.Once(w.Writes(m), func(r testenv.Write) string { return r.Verb + " " + r.Object() }) {
			if r.Verb == "delete" {
				deletions = append(deletions, r.Resource)
			}
		}
		if len(deletions) != 4 || deletions[3] != "namespaces" {
			t.Errorf("%s: deleted in this order: %v", m.Name, deletions)
		}
	}
}

// TestPlacedNamespaceMoves removes a cluster from the placement of a Namespace object.
func TestPlacedNamespaceMoves(t *testing.T) {
	move := func(w *spine.World, clusters ...string) {
		w.Hub.Apply(w, spine.ClusterPolicy(w.Namespace, "{apiVersion: v1, kind: Namespace, name: "+w.Namespace+"}", spine.In(clusters...)))
		w.Cleanup(func() { w.Hub.Remove(w, "policy.orrery.dev/v1alpha1", "ClusterPropagationPolicy", "", w.Namespace) })
	}
	begin := func(t *testing.T, ns string) *spine.World {
		w := spine.Start(t, ns)
		move(w, "oak", "pine")
		w.Eventually("the namespace is in pine", func() error {
			_, err := w.Pine.Find(t.Context(), "v1", "Namespace", "", w.Namespace)
			return err
		})
		return w
	}
	t.Run("WithForeignContent", func(t *testing.T) {
		t.Parallel()
		w := begin(t, "moves-foreign")
		w.Pine.Apply(t, spine.ConfigMap(w.Namespace, "local-owner", "theirs"))
		before := w.Content(w.Pine)
		move(w, "oak")
		w.Moved("ClusterResourceBinding", w.Namespace+"-namespace", "oak")
		kept(w, w.Pine)
		w.Stays(w.Pine, before)
	})
	t.Run("WithWhatAnotherPolicyPlaces", func(t *testing.T) {
		t.Parallel()
		w := begin(t, "moves-placed")
		w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak", "pine"))+spine.Deployment(w.Namespace, "web", 1)+spine.Claim(w.Namespace, "disk"))
		w.Available(w.Pine, "web", 1)
		w.Placed(w.Pine, "v1", "PersistentVolumeClaim", "disk")
		before := w.Content(w.Pine)
		move(w, "oak")
		w.Moved("ClusterResourceBinding", w.Namespace+"-namespace", "oak")
		w.CaughtUp(3 * time.Second)
		w.NoDeletions(w.Pine, w.Marks["pine"])
		w.Stays(w.Pine, before)
		w.Applied("Deployment", "web")
	})
	t.Run("Empty", func(t *testing.T) {
		t.Parallel()
		w := begin(t, "moves-empty")
		move(w, "oak")
		w.Gone(w.Pine, "v1", "Namespace", w.Namespace)
	})
	t.Run("BindingDeletedByHand", func(t *testing.T) {
		t.Parallel()
		w := begin(t, "binding-deleted")
		w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak", "pine"))+spine.Deployment(w.Namespace, "web", 1))
		w.Available(w.Pine, "web", 1)
		before := w.Content(w.Pine)
		// The policy is deleted first, so that the binding is not created again.
		w.Hub.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterPropagationPolicy", "", w.Namespace)
		w.Condition("work.orrery.dev/v1alpha2", "ClusterResourceBinding", "", w.Namespace+"-namespace", "Scheduled=True/PolicyGone")
		w.Hub.Remove(t, "work.orrery.dev/v1alpha2", "ClusterResourceBinding", "", w.Namespace+"-namespace")
		w.CaughtUp(3 * time.Second)
		w.NoDeletions(w.Pine, w.Marks["pine"])
		w.Stays(w.Pine, before)
	})
}

// TestHubNamespaceRestart deletes a namespace on the hub while the hub's server restarts: the
// server must not treat content of a member that it has not read yet as absent.
func TestHubNamespaceRestart(t *testing.T) {
	w := spine.Start(t, "restart-namespace")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.Deployment(w.Namespace, "web", 1))
	w.Available(w.Oak, "web", 1)
	w.Oak.Apply(t, spine.Claim(w.Namespace, "local-disk"))
	w.Hub.Remove(t, "v1", "Namespace", "", w.Namespace)
	w.Hub.Kill()
	w.Restart()
	w.Gone(w.Oak, "apps/v1", "Deployment", "web")
	kept(w, w.Oak)
}
