package placement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// observedGeneration returns the observedGeneration of a Deployment on the hub, and its
// generation.
func observedGeneration(w *spine.World, name string) (observed, generation int64, err error) {
	d, err := w.Hub.Find(w.Context(), "apps/v1", "Deployment", w.Namespace, name)
	if err != nil {
		return 0, 0, err
	}
	observed, _, _ = unstructured.NestedInt64(d.Object, "status", "observedGeneration")
	return observed, d.GetGeneration(), nil
}

// TestStatusDescribesCurrentTemplate edits a Deployment while one of its clusters cannot get
// the edit. The hub may not report the Deployment as rolled out until every cluster has rolled
// it out.
func TestStatusDescribesCurrentTemplate(t *testing.T) {
	const edit = `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`
	for _, tc := range testenv.Sample(t, 2, []struct {
		name  string
		fault testenv.Fault
		lost  bool // edited only after the hub has noticed that the cluster does not answer
		kill  bool // the hub is restarted before the edit
	}{
		{name: "Hung", fault: testenv.Hang},
		{name: "HungAndLost", fault: testenv.Hang, lost: true},
		{name: "CutAndLost", fault: testenv.Cut, lost: true},
		{name: "LostAndRestarted", fault: testenv.Cut, lost: true, kill: true},
	}) {
		t.Run(tc.name, func(t *testing.T) {
			w := spine.Start(t, "status-"+spine.Lower(tc.name))
			w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.In("oak", "pine"))+spine.Deployment(w.Namespace, "web", 1))
			w.Available(w.Oak, "web", 1)
			w.Available(w.Pine, "web", 1)
			w.Applied("Deployment", "web")
			w.Eventually("it is rolled out", func() error {
				observed, generation, err := observedGeneration(w, "web")
				if err == nil && observed != generation {
					err = fmt.Errorf("observedGeneration %d of %d", observed, generation)
				}
				return err
			})
			w.Pine.Fail(tc.fault)
			if tc.lost {
				w.Lost(w.Pine)
			}
			if tc.kill {
				w.Hub.Kill()
				w.Restart()
			}
			w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", edit)
			var generation int64
			w.Eventually("read the generation of the edit", func() (err error) {
				_, generation, err = observedGeneration(w, "web")
				return err
			})
			w.Eventually("oak has rolled the edit out", func() error { return rolledOut(w, w.Oak, "web") })
			w.Never("the hub says nothing of the edit", 3*time.Second, func() error {
				observed, _, err := observedGeneration(w, "web")
				if err == nil && observed >= generation {
					err = fmt.Errorf("observedGeneration is %d", observed)
				}
				return err
			}, w.Oak)
			waits(w, "web")
			b := w.Object(w.Hub.API, "work.orrery.dev/v1alpha2", "ResourceBinding", "web-deployment")
			if has := spine.Conditions(b); strings.Contains(has, "FullyApplied=True") {
				t.Errorf("the binding says %s", has)
			}
			w.Pine.Heal()
			rollsOut(w, "web")
			if err := edited(w.Object(w.Pine.API, "apps/v1", "Deployment", "web")); err != nil {
				t.Errorf("rollout status succeeds, and pine: %v", err)
			}
		})
	}
}

// waits fails the test unless `kubectl rollout status` against the hub waits.
func waits(w *spine.World, name string) {
	w.Helper()
	w.Eventually("rollout status waits", func() error {
		out, err := w.Hub.Kubectl("--context=hub", "-n", w.Namespace, "rollout", "status", "deployment/"+name, "--timeout=2s")
		if err == nil {
			w.Fatalf("rollout status does not wait:\n%s", out)
		}
		if !strings.Contains(out, "Waiting for deployment") || !strings.Contains(out, "timed out") {
			return err // the request may have timed out
		}
		return nil
	})
}

// rollsOut waits until `kubectl rollout status` against the hub reports that a Deployment is
// rolled out.
func rollsOut(w *spine.World, name string) {
	w.Helper()
	w.Eventually("rollout status", func() error {
		out, err := w.Hub.Kubectl("--context=hub", "-n", w.Namespace, "rollout", "status", "deployment/"+name, "--timeout=60s")
		if err != nil && strings.Contains(out, "exceeded its progress deadline") {
			w.Fatal(err)
		}
		return err
	})
}

// rolledOut returns an error until a member's own controllers have rolled out the edit of a
// Deployment with one replica.
func rolledOut(w *spine.World, m *testenv.Member, name string) error {
	d, err := m.Find(w.Context(), "apps/v1", "Deployment", w.Namespace, name)
	if err != nil {
		return err
	}
	if err := edited(d); err != nil {
		return err
	}
	observed, _, _ := unstructured.NestedInt64(d.Object, "status", "observedGeneration")
	updated, _, _ := unstructured.NestedInt64(d.Object, "status", "updatedReplicas")
	all, _, _ := unstructured.NestedInt64(d.Object, "status", "replicas")
	if observed != d.GetGeneration() || updated != 1 || all != 1 || spine.AvailableReplicas(d) != 1 {
		return fmt.Errorf("its status is %v", d.Object["status"])
	}
	return nil
}

// edited returns an error if a Deployment does not have the edit.
func edited(d *unstructured.Unstructured) error {
	if a, _, _ := unstructured.NestedString(d.Object, "spec", "template", "metadata", "annotations", "edited"); a != "yes" {
		return fmt.Errorf("it has not the edit, but %q", a)
	}
	return nil
}

// TestRolloutWaitsForAClusterWithoutCapacity: in one cluster no node accepts the new pod of a
// Deployment. The template is applied everywhere, but it is not rolled out.
func TestRolloutWaitsForAClusterWithoutCapacity(t *testing.T) {
	w := spine.Start(t, "status-no-room")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.In("oak", "pine"))+spine.Deployment(w.Namespace, "web", 1))
	w.Available(w.Oak, "web", 1)
	w.Available(w.Pine, "web", 1)
	open := w.Closed(w.Pine)
	w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	w.Eventually("oak has rolled the edit out", func() error { return rolledOut(w, w.Oak, "web") })
	w.Eventually("pine has the edit", func() error {
		d, err := w.Pine.Find(t.Context(), "apps/v1", "Deployment", w.Namespace, "web")
		if err != nil {
			return err
		}
		return edited(d)
	})
	w.Applied("Deployment", "web")
	w.CaughtUp(2 * time.Second)
	if err := rolledOut(w, w.Pine, "web"); err == nil {
		t.Fatal("pine has rolled the edit out, and has no node for it")
	}
	waits(w, "web")
	open()
	rollsOut(w, "web")
	if err := w.Answered("pine", func() error { return rolledOut(w, w.Pine, "web") }); err != nil {
		t.Errorf("rollout status succeeds, and pine: %v", err)
	}
}
