package spine

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
)

// observed is the generation that a Deployment on the hub says to be about, and its own.
func (w *world) observed(name string) (observed, generation int64, err error) {
	d, err := w.hub.Find(w.Context(), "apps/v1", "Deployment", w.ns, name)
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
			w := start(t, "status-"+lower(name))
			w.hub.Apply(t, policy(w.ns, "web", web, in("oak", "pine"))+deployment(w.ns, "web", 1))
			w.available(w.oak, "web", 1)
			w.available(w.pine, "web", 1)
			w.applied("Deployment", "web")
			w.eventually("it is rolled out", func() error {
				observed, generation, err := w.observed("web")
				if err == nil && observed != generation {
					err = errorf("observedGeneration %d of %d", observed, generation)
				}
				return err
			})
			w.pine.Fail(tc.fault)
			if tc.lost {
				w.lost(w.pine)
			}
			if tc.kill {
				w.hub.Kill()
				w.restart()
			}
			w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "web", edit)
			_, generation, err := w.observed("web")
			w.must(err)
			if out, err := w.hub.Kubectl("--context=hub", "-n", w.ns, "rollout", "status", "deployment/web", "--timeout=6s"); err == nil {
				t.Errorf("rollout status succeeds: %s", out)
			}
			testenv.Never(t, "the hub says nothing of the edit", 3*time.Second, func() error {
				observed, _, err := w.observed("web")
				if err == nil && observed >= generation && w.pine.Fault() == tc.fault {
					return fmt.Errorf("observedGeneration is %d", observed)
				}
				return nil
			})
			b, err := w.hub.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.ns, "web-deployment")
			w.must(err)
			if has := conditions(b); contains(has, "FullyApplied=True") {
				t.Errorf("the binding says %s", has)
			}
			w.pine.Heal()
			if out, err := w.hub.Kubectl("--context=hub", "-n", w.ns, "rollout", "status", "deployment/web", "--timeout=60s"); err != nil {
				t.Errorf("rollout status: %v\n%s", err, out)
			}
			copied, err := w.pine.Find(t.Context(), "apps/v1", "Deployment", w.ns, "web")
			w.must(err)
			if a, _, _ := unstructured.NestedString(copied.Object, "spec", "template", "metadata", "annotations", "edited"); a != "yes" {
				t.Errorf("rollout status succeeds and pine has not the edit")
			}
		})
	}
}

// TestPausedClusterIsNotRolledOut has a Deployment whose controller in one cluster makes no
// progress: the template is applied everywhere and yet not rolled out.
func TestPausedClusterIsNotRolledOut(t *testing.T) {
	w := start(t, "status-no-room")
	w.hub.Apply(t, policy(w.ns, "web", web, in("oak", "pine"))+deployment(w.ns, "web", 1))
	w.available(w.oak, "web", 1)
	w.available(w.pine, "web", 1)
	open := w.closed(w.pine)
	w.hub.MergePatch(t, "apps/v1", "Deployment", w.ns, "web", `{"spec":{"template":{"metadata":{"annotations":{"edited":"yes"}}}}}`)
	if out, err := w.hub.Kubectl("--context=hub", "-n", w.ns, "rollout", "status", "deployment/web", "--timeout=6s"); err == nil {
		t.Errorf("rollout status succeeds: %s", out)
	}
	open()
	if out, err := w.hub.Kubectl("--context=hub", "-n", w.ns, "rollout", "status", "deployment/web", "--timeout=60s"); err != nil {
		t.Errorf("rollout status: %v\n%s", err, out)
	}
}
