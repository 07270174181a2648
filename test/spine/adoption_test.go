package spine

import (
	"strings"
	"testing"
	"time"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/testenv"
)

// foreign makes objects in a member that no hub knows of.
func (w *world) foreign(m *testenv.Member, manifests string) {
	w.Helper()
	m.Apply(w, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.ns+"}\n"+manifests)
}

// about are the writes of a sequence about one kind of object, as their verbs.
func about(writes []testenv.Write, resource, name string) (verbs []string) {
	for _, r := range writes {
		if r.Resource == resource && (name == "" || r.Name == name) {
			verbs = append(verbs, r.Verb)
		}
	}
	return verbs
}

// clusterWide is a cluster-wide policy for the test's namespace, removed at its end.
func (w *world) clusterWide(selectors, placement string, more ...string) {
	w.Helper()
	name := w.ns + "-wide"
	w.hub.Apply(w, clusterPolicy(name, strings.ReplaceAll(selectors, "}", ", namespace: "+w.ns+"}"), placement, more...))
	w.Cleanup(func() { w.hub.Remove(w, "policy.orrery.dev/v1alpha1", "ClusterPropagationPolicy", "", name) })
}

const workloads = "{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: ConfigMap}"

// TestAdoption places what is in the member already, where a cluster-wide policy may adopt it.
func TestAdoption(t *testing.T) {
	w := start(t, "adoption")
	w.foreign(w.oak, deployment(w.ns, "equal", 2)+configMap(w.ns, "equal", "one")+deployment(w.ns, "other", 3)+configMap(w.ns, "other", "theirs"))
	w.available(w.oak, "equal", 2)
	before := w.content(w.oak)
	w.clusterWide(workloads, in("oak"))
	w.hub.Apply(w, deployment(w.ns, "equal", 2)+configMap(w.ns, "equal", "one")+deployment(w.ns, "other", 2)+configMap(w.ns, "other", "ours"))

	for _, k := range [][2]string{{"apps/v1", "Deployment"}, {"v1", "ConfigMap"}} {
		equal := w.placed(w.oak, k[0], k[1], "equal")
		w.applied(k[1], "equal")
		if origin := equal.GetAnnotations()[workv1alpha2.OriginAnnotation]; origin != workv1alpha2.OriginAdopted {
			t.Errorf("%s: origin %q, want %q", k[1], origin, workv1alpha2.OriginAdopted)
		}
		w.binding(k[1], "other", "FullyApplied=False/Conflict")
		other := w.oak.Object(t, k[0], k[1], w.ns, "other")
		for key := range other.GetAnnotations() {
			if strings.Contains(key, "orrery") {
				t.Errorf("%s that differs has our annotation %s", k[1], key)
			}
		}
		if other.GetLabels()[workv1alpha2.BindingLabel] != "" {
			t.Errorf("%s that differs has our label", k[1])
		}
	}
	w.stays(w.oak, before)
	for _, resource := range []string{"deployments", "configmaps"} {
		if verbs := about(w.writes(w.oak), resource, "other"); len(verbs) > 0 {
			t.Errorf("%s that differs was written: %v", resource, verbs)
		}
	}

	// What was there before the hub is left when its template goes, without our marks.
	w.hub.Remove(t, "apps/v1", "Deployment", w.ns, "equal")
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "equal")
	for _, k := range [][2]string{{"apps/v1", "Deployment"}, {"v1", "ConfigMap"}} {
		w.unmarked(w.oak, k[0], k[1], "equal")
	}
	w.noDeletions(w.oak, w.marks["oak"])
	w.stays(w.oak, before)
}

// unmarked waits until an object in a member is there without the mark of a binding.
func (w *world) unmarked(m *testenv.Member, apiVersion, kind, name string) {
	w.Helper()
	w.eventually(kind+" "+name+" is left without our mark", func() error {
		o, err := m.Find(w.Context(), apiVersion, kind, w.ns, name)
		if err != nil {
			w.Fatalf("%s %s: %v", kind, name, err)
		}
		if mark := o.GetLabels()[workv1alpha2.BindingLabel]; mark != "" {
			return errorf("it has the mark %s", mark)
		}
		return nil
	})
}

// TestNamespacedPolicyAdoptsNothing places what is in a namespace of the member that was there
// before: a namespaced policy may not adopt it, equal or not.
func TestNamespacedPolicyAdoptsNothing(t *testing.T) {
	w := start(t, "adopts-nothing")
	w.foreign(w.oak, configMap(w.ns, "equal", "one"))
	before := w.content(w.oak)
	w.hub.Apply(t, policy(w.ns, "all", workloads, in("oak"))+configMap(w.ns, "equal", "one")+configMap(w.ns, "new", "one"))
	w.binding("ConfigMap", "equal", "FullyApplied=False/Conflict")
	w.placed(w.oak, "v1", "ConfigMap", "new")
	w.stays(w.oak, before)
	if verbs := about(w.writes(w.oak), "configmaps", "equal"); len(verbs) > 0 {
		t.Errorf("it was written: %v", verbs)
	}
}

// TestOrphansAreOursAgain unjoins a reachable cluster: each object keeps one annotation that
// says whose it was, and is ours again at the next join without a policy that allows anything.
func TestOrphansAreOursAgain(t *testing.T) {
	w := start(t, "orphans")
	w.hub.Apply(t, policy(w.ns, "all", workloads, in("oak"))+deployment(w.ns, "web", 2)+configMap(w.ns, "settings", "one"))
	w.placed(w.oak, "v1", "ConfigMap", "settings")
	w.placed(w.oak, "apps/v1", "Deployment", "web")
	w.available(w.oak, "web", 2)
	before := w.content(w.oak)
	template := w.hub.Object(t, "v1", "ConfigMap", w.ns, "settings")
	w.must(w.hub.Unjoin(w.oak))
	left := w.oak.Object(t, "v1", "ConfigMap", w.ns, "settings")
	if orphan, ok := mark.ParseOrphan(left.GetAnnotations()[workv1alpha2.OrphanAnnotation]); !ok || orphan.Template != template.GetUID() {
		t.Errorf("the orphan's mark is %+v, want one of template %s", orphan, template.GetUID())
	}
	if label := left.GetLabels()[workv1alpha2.BindingLabel]; label != "" {
		t.Errorf("the binding's mark is left: %s", label)
	}
	mark := w.oak.Mark()
	w.must(w.hub.Join(w.oak))
	again := w.placed(w.oak, "v1", "ConfigMap", "settings")
	if mark := again.GetAnnotations()[workv1alpha2.OrphanAnnotation]; mark != "" {
		t.Errorf("it is ours and marked as an orphan: %s", mark)
	}
	if origin := again.GetAnnotations()[workv1alpha2.OriginAnnotation]; origin != "" {
		t.Errorf("it was ours before and has origin %q", origin)
	}
	w.applied("ConfigMap", "settings")
	w.applied("Deployment", "web")
	w.quiet(time.Second)
	w.noDeletions(w.oak, mark)
	w.stays(w.oak, before)
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "settings")
	w.gone(w.oak, "v1", "ConfigMap", "settings")
}

// TestOverwrite has policies that overwrite what is in a member.
func TestOverwrite(t *testing.T) {
	const overwrite = "conflictResolution: Overwrite"
	t.Run("NamespacedWhereTheNamespaceWasBefore", func(t *testing.T) {
		w := start(t, "overwrite-foreign")
		w.foreign(w.oak, secret(w.ns, "paykey", "theirs")+configMap(w.ns, "settings", "theirs"))
		before := w.content(w.oak)
		w.hub.Apply(t, policy(w.ns, "all", everything, in("oak"), overwrite)+secret(w.ns, "paykey", "stolen")+configMap(w.ns, "settings", "ours"))
		w.binding("Secret", "paykey", "FullyApplied=False/Conflict")
		w.binding("ConfigMap", "settings", "FullyApplied=False/Conflict")
		w.stays(w.oak, before)
		w.hub.Remove(t, "v1", "Secret", w.ns, "paykey")
		w.quiet(2 * time.Second)
		w.stays(w.oak, before)
		if writes := w.writes(w.oak); len(writes) > 0 {
			t.Errorf("written: %v", writes)
		}
	})
	t.Run("NamespacedWhereThisHubMadeTheNamespace", func(t *testing.T) {
		w := start(t, "overwrite-ours")
		w.hub.Apply(t, policy(w.ns, "first", "{apiVersion: v1, kind: ConfigMap, name: first}", in("oak"))+configMap(w.ns, "first", "one"))
		w.placed(w.oak, "v1", "ConfigMap", "first")
		w.oak.Apply(t, configMap(w.ns, "settings", "theirs"))
		was := w.oak.Object(t, "v1", "ConfigMap", w.ns, "settings").GetUID()
		w.hub.Apply(t, policy(w.ns, "all", "{apiVersion: v1, kind: ConfigMap, name: settings}", in("oak"), overwrite)+configMap(w.ns, "settings", "ours"))
		now := w.placed(w.oak, "v1", "ConfigMap", "settings")
		if now.GetUID() != was || now.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginTakenOver {
			t.Errorf("UID %s, want %s; annotations %v", now.GetUID(), was, now.GetAnnotations())
		}
		w.hub.Remove(t, "v1", "ConfigMap", w.ns, "settings")
		w.unmarked(w.oak, "v1", "ConfigMap", "settings")
		w.noDeletions(w.oak, w.marks["oak"])
	})
	t.Run("ClusterWide", func(t *testing.T) {
		w := start(t, "overwrite-wide")
		w.foreign(w.oak, secret(w.ns, "paykey", "theirs"))
		was := w.oak.Object(t, "v1", "Secret", w.ns, "paykey").GetUID()
		w.clusterWide("{apiVersion: v1, kind: Secret}", in("oak"), overwrite)
		w.hub.Apply(t, secret(w.ns, "paykey", "ours"))
		now := w.placed(w.oak, "v1", "Secret", "paykey")
		if now.GetUID() != was || now.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginTakenOver {
			t.Errorf("UID %s, want %s; annotations %v", now.GetUID(), was, now.GetAnnotations())
		}
		w.applied("Secret", "paykey")
		w.hub.Remove(t, "v1", "Secret", w.ns, "paykey")
		w.unmarked(w.oak, "v1", "Secret", "paykey")
		w.noDeletions(w.oak, w.marks["oak"])
	})
}
