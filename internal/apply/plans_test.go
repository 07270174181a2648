package apply

import (
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// TestPlansOncePerVersion: each version of a binding is planned once for each cluster. Events
// of the copy, of the decision that was acted on, of a status and of the end of a move do not
// repeat the plan again and again.
func TestPlansOncePerVersion(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.join("oak", testenv.Kubeconfig(oakServer))
	f.join("elm", testenv.Kubeconfig(elmServer))
	oak, ns := f.client(testenv.Config(oakServer)), testenv.Namespace(t, testenv.Config(hubServer))
	place := func(name string) *workv1alpha2.ResourceBinding {
		t.Helper()
		b := f.bind(configMap(ns, name, "1"), nil, "oak", "elm")
		f.result(b, "oak", workv1alpha2.ReasonFullyApplied)
		f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
		return b
	}
	planned := func(when string, b *workv1alpha2.ResourceBinding, want map[string]int) {
		t.Helper()
		for cluster, most := range want {
			if s, _ := f.applier.results.get(b.UID, cluster); s.plans != most {
				t.Errorf("%s: %d plans for %s, want %d", when, s.plans, cluster, most)
			}
		}
	}
	place("first") // creates the namespaces, and makes the mirror list the type

	b := place("a")
	f.applier.decided(client.ObjectKeyFromObject(b))
	b.Status.Counts = &workv1alpha2.ClusterCounts{Total: 2}
	f.must(f.hub.Status().Update(t.Context(), b))
	place("b") // by now all events of a were handled
	planned("a new binding", b, map[string]int{"oak": 1, "elm": 1})

	f.edit(b, func(s *workv1alpha2.BindingSpec) { s.PlacementHash = "another" })
	f.result(b, "oak", workv1alpha2.ReasonFullyApplied) // of the new generation
	f.result(b, "elm", workv1alpha2.ReasonFullyApplied)
	planned("a new generation", b, map[string]int{"oak": 2, "elm": 2})

	// A move ended, and placement has not yet removed its task from the binding.
	copied := f.data(oak, ns, "a", "1")
	f.move(b, "elm")
	f.gone(oak, copied)
	f.eventually("nothing is left in oak", func() error {
		if !f.applier.Gone(b.UID, "oak") {
			return errors.New("it may be")
		}
		return nil
	})
	before, _ := f.applier.results.get(b.UID, "oak")
	for _, name := range []string{"c", "d", "e"} {
		place(name)
	}
	if after, _ := f.applier.results.get(b.UID, "oak"); after.plans > before.plans+2 {
		t.Errorf("%d plans after the end of a move, want at most 2", after.plans-before.plans)
	}
	f.unjoin("oak")
	f.unjoin("elm")
}
