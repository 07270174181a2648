package lifecycle_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/node"
)

// TestComponentsInWaves: if API servers and kubelets change, all API servers change before any
// kubelet.
func TestComponentsInWaves(t *testing.T) {
	l := built(t, 4, 3)
	var mu sync.Mutex
	var order []string
	register := l.fleet.Applied
	l.fleet.Applied = func(name string, req node.Request) {
		mu.Lock()
		for _, s := range req.Steps {
			if s.ID == "apiserver/unit" || s.ID == "kubelet/unit" {
				order = append(order, s.ID+" "+name)
			}
		}
		mu.Unlock()
		register(name, req)
	}
	spec := l.maxPods(70)
	spec.Kubernetes.APIServerArgs = []string{"max-requests-inflight=500"}
	l.must(lifecyclev1alpha1.ActionApply, spec)
	want := []string{"apiserver/unit h-1", "apiserver/unit h-2", "apiserver/unit h-3", "kubelet/unit h-1", "kubelet/unit h-2", "kubelet/unit h-3", "kubelet/unit h-4"}
	if d := cmp.Diff(want, order); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestHaltAfter: failed hosts are left out until there are too many. The error names all of them.
func TestHaltAfter(t *testing.T) {
	for name, c := range map[string]struct {
		haltAfter int32
		changed   []string
		says      []string
	}{
		"TheFirst":     {changed: nil, says: []string{"host h-2: "}},
		"TheThird":     {haltAfter: 3, changed: []string{"h-4", "h-5"}, says: []string{"host h-2: ", "host h-3: "}},
		"TheSecondOne": {haltAfter: 2, changed: nil, says: []string{"host h-2: ", "host h-3: "}},
	} {
		t.Run(name, func(t *testing.T) {
			l := built(t, 5, 1)
			l.fleet.NodeFault = func(name, point string) error {
				if point == "step/begun" && (name == "h-2" || name == "h-3") { // it has its lease and files
					return errors.New("the disk is gone")
				}
				return nil
			}
			// The only control plane changes first, and succeeds.
			op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(71), ordered(lifecyclev1alpha1.Rollout{HaltAfter: c.haltAfter}))
			says(t, err, c.says...)
			if phase := l.kept(op.Name).Status.Phase; phase != lifecyclev1alpha1.PhaseFailed {
				t.Errorf("the run is %s", phase)
			}
			for _, h := range []string{"h-4", "h-5"} {
				if got := strings.Contains(l.tree(h)["/etc/kubernetes/kubelet.yaml"], "maxPods: 71"); got != slices.Contains(c.changed, h) {
					t.Errorf("host %s is changed: %v", h, got)
				}
			}
			l.fleet.NodeFault = nil
			if err := l.resume(op.Name); err != nil {
				t.Fatal(err)
			}
			for _, h := range l.spec.Hosts {
				if !strings.Contains(l.tree(h.Name)["/etc/kubernetes/kubelet.yaml"], "maxPods: 71") {
					t.Errorf("host %s is not changed by the resumed run", h.Name)
				}
			}
		})
	}
}

// TestPauseBetween: a run pauses between waves that interrupt something. The pause ends at once if
// the run is canceled.
func TestPauseBetween(t *testing.T) {
	l := built(t, 3, 1)
	paused := func(d time.Duration) func(*lifecyclev1alpha1.OperationSpec) {
		return ordered(lifecyclev1alpha1.Rollout{PauseBetween: &metav1.Duration{Duration: d}})
	}
	op := l.must(lifecyclev1alpha1.ActionApply, l.maxPods(72), paused(time.Millisecond))
	var pauses []string
	for _, s := range op.Status.Steps {
		if strings.HasPrefix(s.ID, "pause/") {
			pauses = append(pauses, s.ID)
		}
	}
	if d := cmp.Diff([]string{"pause/1", "pause/2"}, pauses); d != "" {
		t.Errorf("pauses (-want +got): %s", d)
	}
	began := make(chan string, 1)
	l.env.progress = func(op lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
		if strings.HasPrefix(s.ID, "pause/") && s.State == lifecyclev1alpha1.StepRunning {
			began <- op.Name
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(73), paused(time.Hour))
		ended <- err
	}()
	if err := l.store.Control(t.Context(), <-began, func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true }); err != nil {
		t.Fatal(err)
	}
	says(t, <-ended, "canceled")
}
