package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// foreign creates objects in a member that belong to no hub.
func foreign(w *spine.World, m *testenv.Member, manifests string) {
	w.Helper()
	m.Apply(w, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+w.Namespace+"}\n"+manifests)
}

// about returns the verbs of the writes to one resource, and to one name unless name is empty.
func about(writes []testenv.Write, resource, name string) (verbs []string) {
	for _, r := range writes {
		if r.Resource == resource && (name == "" || r.Name == name) {
			verbs = append(verbs, r.Verb)
		}
	}
	return verbs
}

// clusterWide applies a cluster-wide policy for the test's namespace, and removes it at the
// test's end.
func clusterWide(w *spine.World, selectors, placement string, more ...string) {
	w.Helper()
	name := w.Namespace + "-wide"
	w.Hub.Apply(w, spine.ClusterPolicy(name, strings.ReplaceAll(selectors, "}", ", namespace: "+w.Namespace+"}"), placement, more...))
	w.Cleanup(func() { w.Hub.Remove(w, "policy.orrery.dev/v1alpha1", "ClusterPropagationPolicy", "", name) })
}

const workloads = "{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: ConfigMap}"

// TestAdoption places templates whose objects already exist in the member, under a cluster-wide
// policy that may adopt them.
func TestAdoption(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "adoption")
	foreign(w, w.Oak, spine.Deployment(w.Namespace, "equal", 2)+spine.ConfigMap(w.Namespace, "equal", "one")+spine.Deployment(w.Namespace, "other", 3)+spine.ConfigMap(w.Namespace, "other", "theirs"))
	w.Available(w.Oak, "equal", 2)
	before := w.Content(w.Oak)
	clusterWide(w, workloads, spine.In("oak"))
	w.Hub.Apply(w, spine.Deployment(w.Namespace, "equal", 2)+spine.ConfigMap(w.Namespace, "equal", "one")+spine.Deployment(w.Namespace, "other", 2)+spine.ConfigMap(w.Namespace, "other", "ours"))

	for _, k := range [][2]string{{"apps/v1", "Deployment"}, {"v1", "ConfigMap"}} {
		equal := w.Placed(w.Oak, k[0], k[1], "equal")
		w.Applied(k[1], "equal")
		if origin := equal.GetAnnotations()[workv1alpha2.OriginAnnotation]; origin != workv1alpha2.OriginAdopted {
			t.Errorf("%s: origin %q, want %q", k[1], origin, workv1alpha2.OriginAdopted)
		}
		w.Binding(k[1], "other", "FullyApplied=False/Conflict")
		other := w.Object(w.Oak.API, k[0], k[1], "other")
		for key := range other.GetAnnotations() {
			if strings.Contains(key, "orrery") {
				t.Errorf("%s that differs has our annotation %s", k[1], key)
			}
		}
		if other.GetLabels()[workv1alpha2.BindingLabel] != "" {
			t.Errorf("%s that differs has our label", k[1])
		}
	}
	w.Stays(w.Oak, before)
	for _, resource := range []string{"deployments", "configmaps"} {
		if verbs := about(w.Writes(w.Oak), resource, "other"); len(verbs) > 0 {
			t.Errorf("%s that differs was written: %v", resource, verbs)
		}
	}

	// An object that existed before is kept without our labels when its template is deleted.
	w.Hub.Remove(t, "apps/v1", "Deployment", w.Namespace, "equal")
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "equal")
	for _, k := range [][2]string{{"apps/v1", "Deployment"}, {"v1", "ConfigMap"}} {
		unmarked(w, w.Oak, k[0], k[1], "equal")
	}
	w.NoDeletions(w.Oak, w.Marks["oak"])
	w.Stays(w.Oak, before)
}

// unmarked waits until an object in a member exists without the label of a binding.
func unmarked(w *spine.World, m *testenv.Member, apiVersion, kind, name string) {
	w.Helper()
	w.Eventually(kind+" "+name+" is left without our mark", func() error {
		o, err := m.Find(w.Context(), apiVersion, kind, w.Namespace, name)
		if apierrors.IsNotFound(err) {
			w.Fatalf("%s %s: %v", kind, name, err)
		}
		if err != nil {
			return err
		}
		if mark := o.GetLabels()[workv1alpha2.BindingLabel]; mark != "" {
			return fmt.Errorf("it has the mark %s", mark)
		}
		return nil
	})
}

// TestNamespacedPolicyAdoptsNothing places templates whose objects exist in a namespace that
// the member had before: a namespaced policy may not adopt them, even if they are equal.
func TestNamespacedPolicyAdoptsNothing(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "adopts-nothing")
	foreign(w, w.Oak, spine.ConfigMap(w.Namespace, "equal", "one"))
	before := w.Content(w.Oak)
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", workloads, spine.In("oak"))+spine.ConfigMap(w.Namespace, "equal", "one")+spine.ConfigMap(w.Namespace, "new", "one"))
	w.Binding("ConfigMap", "equal", "FullyApplied=False/Conflict")
	w.Placed(w.Oak, "v1", "ConfigMap", "new")
	w.Stays(w.Oak, before)
	if verbs := about(w.Writes(w.Oak), "configmaps", "equal"); len(verbs) > 0 {
		t.Errorf("it was written: %v", verbs)
	}
}

// TestOrphansAreOursAgain unjoins a reachable cluster: each object keeps one annotation with
// its former binding. The next join takes the object over, without a policy that allows
// adoption.
func TestOrphansAreOursAgain(t *testing.T) {
	w := spine.Start(t, "orphans")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", workloads, spine.In("oak"))+spine.Deployment(w.Namespace, "web", 2)+spine.ConfigMap(w.Namespace, "settings", "one"))
	w.Placed(w.Oak, "v1", "ConfigMap", "settings")
	w.Placed(w.Oak, "apps/v1", "Deployment", "web")
	w.Available(w.Oak, "web", 2)
	before := w.Content(w.Oak)
	template := w.Object(w.Hub.API, "v1", "ConfigMap", "settings")
	w.Unjoin(w.Oak)
	left := w.Object(w.Oak.API, "v1", "ConfigMap", "settings")
	if orphan, ok := mark.ParseOrphan(left.GetAnnotations()[workv1alpha2.OrphanAnnotation]); !ok || orphan.Template != template.GetUID() {
		t.Errorf("the orphan's mark is %+v, want one of template %s", orphan, template.GetUID())
	}
	if label := left.GetLabels()[workv1alpha2.BindingLabel]; label != "" {
		t.Errorf("the binding's mark is left: %s", label)
	}
	mark := w.Oak.Mark()
	w.Join(w.Oak)
	again := w.Placed(w.Oak, "v1", "ConfigMap", "settings")
	if mark := again.GetAnnotations()[workv1alpha2.OrphanAnnotation]; mark != "" {
		t.Errorf("it is ours and marked as an orphan: %s", mark)
	}
	if origin := again.GetAnnotations()[workv1alpha2.OriginAnnotation]; origin != "" {
		t.Errorf("it was ours before and has origin %q", origin)
	}
	w.Applied("ConfigMap", "settings")
	w.Applied("Deployment", "web")
	w.CaughtUp(time.Second)
	w.NoDeletions(w.Oak, mark)
	w.Stays(w.Oak, before)
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "settings")
	w.Gone(w.Oak, "v1", "ConfigMap", "settings")
}

// TestOrphansAreListed unjoins a cluster and deletes templates before it joins again. The
// orphaned copies are listed, without the objects that controllers created for them, and
// without those that the hub takes over. An orphan is removed on request, or is taken over when
// its template is created again.
func TestOrphansAreListed(t *testing.T) {
	w := spine.Start(t, "orphans-listed")
	adopted := spine.ConfigMap(w.Namespace, "adopted", "one")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", workloads, spine.In("oak"))+spine.Deployment(w.Namespace, "web", 1)+adopted+
		spine.ConfigMap(w.Namespace, "removed", "one")+spine.ConfigMap(w.Namespace, "back", "one"))
	w.Available(w.Oak, "web", 1)
	for _, name := range []string{"adopted", "removed", "back"} {
		w.Placed(w.Oak, "v1", "ConfigMap", name)
	}
	listed := func() []string {
		t.Helper()
		var out string
		w.Attempt("list orphans", func() (err error) {
			out, err = w.Hub.Orrery("cluster", "orphans", "oak", "-o", "name")
			return err
		})
		return slices.DeleteFunc(strings.Fields(out), func(line string) bool { return !strings.Contains(line, "/"+w.Namespace) })
	}
	orphan := func(resource, name string) string { return "oak/" + resource + "/" + w.Namespace + "/" + name }
	// among returns the listed orphans. It fails the test if others than these are listed.
	among := func(orphans ...string) []string {
		t.Helper()
		got := listed()
		for _, line := range got {
			if !slices.Contains(orphans, line) {
				t.Fatalf("orphans are %v, want no others than %v", got, orphans)
			}
		}
		return got
	}
	if got := listed(); len(got) > 0 {
		t.Errorf("before the unjoin these are listed: %v", got)
	}
	w.Unjoin(w.Oak)
	w.Hub.Remove(t, "apps/v1", "Deployment", w.Namespace, "web")
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "adopted")
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "removed")
	w.Join(w.Oak)
	w.Placed(w.Oak, "v1", "ConfigMap", "back")
	w.CaughtUp(time.Second)

	want := []string{orphan("configmaps", "adopted"), orphan("configmaps", "removed"), orphan("deployments.apps", "web")}
	w.Eventually("what was left is listed", func() error {
		if diff := cmp.Diff(want, among(want...)); diff != "" {
			return fmt.Errorf("orphans (-want +got):\n%s", diff)
		}
		return nil
	})
	was := w.Object(w.Oak.API, "v1", "ConfigMap", "adopted").GetUID()
	w.Hub.Apply(t, adopted)
	if now := w.Placed(w.Oak, "v1", "ConfigMap", "adopted").GetUID(); now != was {
		t.Errorf("the adopted one has UID %s, want %s", now, was)
	}
	w.CaughtUp(time.Second)
	said := ""
	w.Attempt("remove orphans", func() error {
		out, err := w.Hub.Orrery("cluster", "orphans", "oak", "--remove", "--yes")
		said += out
		return err
	})
	if !strings.Contains(said, "LeftAtUnjoin") {
		t.Errorf("remove:\n%s", said)
	}
	w.Gone(w.Oak, "v1", "ConfigMap", "removed")
	w.Gone(w.Oak, "apps/v1", "Deployment", "web")
	w.CaughtUp(time.Second)
	w.Eventually("nothing is listed after the removal", func() error {
		if got := among(want[1:]...); len(got) > 0 { // "adopted" is placed again
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	w.Placed(w.Oak, "v1", "ConfigMap", "adopted")
	w.Placed(w.Oak, "v1", "ConfigMap", "back")
}

// TestOverwrite tests policies that overwrite objects in a member.
func TestOverwrite(t *testing.T) {
	const overwrite = "conflictResolution: Overwrite"
	t.Run("NamespacedWhereTheNamespaceWasBefore", func(t *testing.T) {
		t.Parallel()
		w := spine.Start(t, "overwrite-foreign")
		foreign(w, w.Oak, spine.Secret(w.Namespace, "paykey", "theirs")+spine.ConfigMap(w.Namespace, "settings", "theirs"))
		before := w.Content(w.Oak)
		w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"), overwrite)+spine.Secret(w.Namespace, "paykey", "stolen")+spine.ConfigMap(w.Namespace, "settings", "ours"))
		w.Binding("Secret", "paykey", "FullyApplied=False/Conflict")
		w.Binding("ConfigMap", "settings", "FullyApplied=False/Conflict")
		w.Stays(w.Oak, before)
		w.Hub.Remove(t, "v1", "Secret", w.Namespace, "paykey")
		w.CaughtUp(2 * time.Second)
		w.Stays(w.Oak, before)
		if writes := w.Writes(w.Oak); len(writes) > 0 {
			t.Errorf("written: %v", writes)
		}
	})
	t.Run("NamespacedWhereThisHubMadeTheNamespace", func(t *testing.T) {
		t.Parallel()
		w := spine.Start(t, "overwrite-ours")
		w.Hub.Apply(t, spine.Policy(w.Namespace, "first", "{apiVersion: v1, kind: ConfigMap, name: first}", spine.In("oak"))+spine.ConfigMap(w.Namespace, "first", "one"))
		w.Placed(w.Oak, "v1", "ConfigMap", "first")
		w.Oak.Apply(t, spine.ConfigMap(w.Namespace, "settings", "theirs"))
		was := w.Object(w.Oak.API, "v1", "ConfigMap", "settings").GetUID()
		w.Hub.Apply(t, spine.Policy(w.Namespace, "all", "{apiVersion: v1, kind: ConfigMap, name: settings}", spine.In("oak"), overwrite)+spine.ConfigMap(w.Namespace, "settings", "ours"))
		now := w.Placed(w.Oak, "v1", "ConfigMap", "settings")
		if now.GetUID() != was || now.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginTakenOver {
			t.Errorf("UID %s, want %s; annotations %v", now.GetUID(), was, now.GetAnnotations())
		}
		w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "settings")
		unmarked(w, w.Oak, "v1", "ConfigMap", "settings")
		w.NoDeletions(w.Oak, w.Marks["oak"])
	})
	t.Run("ClusterWide", func(t *testing.T) {
		t.Parallel()
		w := spine.Start(t, "overwrite-wide")
		foreign(w, w.Oak, spine.Secret(w.Namespace, "paykey", "theirs"))
		was := w.Object(w.Oak.API, "v1", "Secret", "paykey").GetUID()
		clusterWide(w, "{apiVersion: v1, kind: Secret}", spine.In("oak"), overwrite)
		w.Hub.Apply(t, spine.Secret(w.Namespace, "paykey", "ours"))
		now := w.Placed(w.Oak, "v1", "Secret", "paykey")
		if now.GetUID() != was || now.GetAnnotations()[workv1alpha2.OriginAnnotation] != workv1alpha2.OriginTakenOver {
			t.Errorf("UID %s, want %s; annotations %v", now.GetUID(), was, now.GetAnnotations())
		}
		w.Applied("Secret", "paykey")
		w.Hub.Remove(t, "v1", "Secret", w.Namespace, "paykey")
		unmarked(w, w.Oak, "v1", "Secret", "paykey")
		w.NoDeletions(w.Oak, w.Marks["oak"])
	})
}
