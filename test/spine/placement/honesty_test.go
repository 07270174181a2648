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

// observed is the generation that a Deployment on the hub says to be about, and its own.
func observedGeneration(w *spine.World, name string) (observed, generation int64, err error) {
	d, err := w.Hub.Find(w.Context(), "apps/v1", "Deployment", w.Namespace, name)
	if err != nil {
		return 0, 0, err
	}
	observed, _, _ = unstructured.NestedInt64(d.Object, "status", "observedGeneration")
	return observed, d.GetGeneration(), nil
}

// TestStatusSpeaksOfTheTemplateAsItIs edits a Deployment that one of its clusters cannot get.
// Nothing on the hub may say that it is rolled out until it is.
func TestStatusSpeaksOfTheTemplateAsItIs(t *testing.T) {
	const edit = `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`
	for name, tc := range map[string]struct {
		fault testenv.Fault
		lost  bool // edited only when the hub knows that the cluster does not answer
		kill  bool // the hub is restarted before the edit
	}{
		"Hung":             {fault: testenv.Hang},
		"HungAndLost":      {fault: testenv.Hang, lost: true},
		"CutAndLost":       {fault: testenv.Cut, lost: true},
		"LostAndRestarted": {fault: testenv.Cut, lost: true, kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := spine.Start(t, "status-"+spine.Lower(name))
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
			_, generation, err := observedGeneration(w, "web")
			w.Must(err)
			if out, err := w.Hub.Kubectl("--context=hub", "-n", w.Namespace, "rollout", "status", "deployment/web", "--timeout=6s"); err == nil {
				t.Errorf("rollout status succeeds: %s", out)
			}
			testenv.Never(t, "the hub says nothing of the edit", 3*time.Second, func() error {
				observed, _, err := observedGeneration(w, "web")
				if err == nil && observed >= generation && w.Pine.Fault() == tc.fault {
					return fmt.Errorf("observedGeneration is %d", observed)
				}
				return nil
			})
			b, err := w.Hub.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, "web-deployment")
			w.Must(err)
			if has := spine.Conditions(b); strings.Contains(has, "FullyApplied=True") {
				t.Errorf("the binding says %s", has)
			}
			w.Pine.Heal()
			if out, err := w.Hub.Kubectl("--context=hub", "-n", w.Namespace, "rollout", "status", "deployment/web", "--timeout=60s"); err != nil {
				t.Errorf("rollout status: %v\n%s", err, out)
			}
			copied, err := w.Pine.Find(t.Context(), "apps/v1", "Deployment", w.Namespace, "web")
			w.Must(err)
			if a, _, _ := unstructured.NestedString(copied.Object, "spec", "template", "metadata", "annotations", "edited"); a != "yes" {
				t.Errorf("rollout status succeeds and pine has not the edit")
			}
		})
	}
}

// TestPausedClusterIsNotRolledOut has a Deployment whose controller in one cluster makes no
// progress: the template is applied everywhere and yet not rolled out.
func TestPausedClusterIsNotRolledOut(t *testing.T) {
	w := spine.Start(t, "status-no-room")
	w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.In("oak", "pine"))+spine.Deployment(w.Namespace, "web", 1))
	w.Available(w.Oak, "web", 1)
	w.Available(w.Pine, "web", 1)
	open := w.Closed(w.Pine)
	w.Hub.MergePatch(t, "apps/v1", "Deployment", w.Namespace, "web", `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	if out, err := w.Hub.Kubectl("--context=hub", "-n", w.Namespace, "rollout", "status", "deployment/web", "--timeout=6s"); err == nil {
		t.Errorf("rollout status succeeds: %s", out)
	}
	open()
	if out, err := w.Hub.Kubectl("--context=hub", "-n", w.Namespace, "rollout", "status", "deployment/web", "--timeout=60s"); err != nil {
		t.Errorf("rollout status: %v\n%s", err, out)
	}
}
