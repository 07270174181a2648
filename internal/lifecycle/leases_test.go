package lifecycle_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/node"
)

// elsewhereCopied returns the lab as it is on another machine, with a copy of the state.
func (l *lab) elsewhereCopied(holder string) *lab {
	l.t.Helper()
	other := *l
	other.store = lifecycle.Files(l.t.TempDir())
	other.engine = l.elsewhere(other.store, holder)
	if err := os.CopyFS(other.store.Path("oak"), os.DirFS(l.store.Path("oak"))); err != nil {
		l.t.Fatal(err)
	}
	// The other machine has not seen the runs of this one.
	if err := os.RemoveAll(other.store.Path("oak", "operations")); err != nil {
		l.t.Fatal(err)
	}
	return &other
}

// ask changes the spec of an Operation while it runs.
func (l *lab) ask(name string, change func(*lifecyclev1alpha1.OperationSpec)) {
	l.t.Helper()
	if err := l.store.Control(l.t.Context(), name, change); err != nil {
		l.t.Error(err)
	}
}

// holders returns the operations that have the leases of hosts, by host.
func (l *lab) holders() map[string]string {
	l.t.Helper()
	holders := map[string]string{}
	for _, h := range l.spec.Hosts {
		applied, err := hosttest.Rooted(l.fleet.Root(h.Name)).Observe(l.t.Context())
		if err != nil {
			l.t.Fatal(err)
		}
		holders[h.Name] = applied.Lease.Operation
	}
	return holders
}

// TestLeasesBeforeTheFirstWave: a run has the leases of all its hosts before it changes the first
// one, and until it ends. A run on another machine, with a copy of the state, is refused during a
// pause of the first one, before it changes anything.
func TestLeasesBeforeTheFirstWave(t *testing.T) {
	l := built(t, 4, 1)
	other := l.elsewhereCopied("elsewhere")
	var refused *lifecyclev1alpha1.Operation
	var second error
	l.env.progress = func(op lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
		if s.ID != "pause/1" || s.State != lifecyclev1alpha1.StepRunning {
			return
		}
		all := map[string]string{"h-1": op.Name, "h-2": op.Name, "h-3": op.Name, "h-4": op.Name}
		if d := cmp.Diff(all, l.holders()); d != "" {
			t.Errorf("leases in the pause (-want +got):\n%s", d)
		}
		before := l.trees()
		refused, second = other.run(lifecyclev1alpha1.ActionApply, other.maxPods(80))
		if d := cmp.Diff(before, l.trees()); d != "" {
			t.Errorf("the second run changed hosts: %s", d)
		}
	}
	pause := lifecyclev1alpha1.Rollout{PauseBetween: &metav1.Duration{Duration: time.Millisecond}}
	l.must(lifecyclev1alpha1.ActionApply, l.maxPods(70), ordered(pause))
	if refused == nil {
		t.Fatal("there was no pause")
	}
	other.wantRefused(refused, second, "operation oak-2, run by test, works on this host", "wait for it")
	for _, h := range l.spec.Hosts {
		if !strings.Contains(l.tree(h.Name)["/etc/kubernetes/kubelet.yaml"], "maxPods: 70") {
			t.Errorf("host %s does not have what the first run applied", h.Name)
		}
	}
	if d := cmp.Diff(map[string]string{"h-1": "", "h-2": "", "h-3": "", "h-4": ""}, l.holders()); d != "" {
		t.Errorf("leases after the run (-want +got):\n%s", d)
	}
}

// TestLeasesOfTheControlPlane: runs that change different hosts exclude each other, because both
// have the leases of the control plane.
func TestLeasesOfTheControlPlane(t *testing.T) {
	l := built(t, 3, 1)
	other := l.elsewhereCopied("elsewhere")
	// Each run repairs a worker of its own.
	drop := func(name string) { l.lose(name, "/etc/kubernetes/kubelet.yaml") }
	drop("h-2")
	var refused *lifecyclev1alpha1.Operation
	var second error
	register := l.fleet.Applied
	l.fleet.Applied = func(name string, req node.Request) {
		register(name, req)
		if refused != nil || name != "h-2" || len(req.Steps) == 0 {
			return
		}
		drop("h-3")
		l.fleet.Forget()
		refused, second = other.run(lifecyclev1alpha1.ActionApply, l.spec)
		if slices.Contains(l.fleet.Commands("h-3"), "apply") {
			t.Errorf("the second run changed host h-3: %v", l.fleet.Commands("h-3"))
		}
	}
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	if refused == nil {
		t.Fatal("nothing was repaired")
	}
	other.wantRefused(refused, second, "host h-1: operation oak-2, run by test, works on this host")
}

// TestLeasesEndWithTheRun: a run that fails or is canceled gives up all its leases. One that was
// paused keeps them.
func TestLeasesEndWithTheRun(t *testing.T) {
	none := map[string]string{"h-1": "", "h-2": "", "h-3": ""}
	for name, tc := range map[string]struct {
		stop func(l *lab) // before the second host is changed
		want map[string]string
	}{
		"Failed": {func(l *lab) {
			l.fleet.NodeFault = func(_, point string) error {
				if point == "step/begun" {
					return errors.New("broken off")
				}
				return nil
			}
		}, none},
		"Canceled": {func(l *lab) { l.ask("oak-2", func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true }) }, none},
		"Paused": {
			func(l *lab) { l.ask("oak-2", func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = true }) },
			map[string]string{"h-1": "oak-2", "h-2": "oak-2", "h-3": "oak-2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := built(t, 3, 1)
			l.env.progress = func(_ lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
				if s.ID == "pause/1" && s.State == lifecyclev1alpha1.StepRunning {
					tc.stop(l)
				}
			}
			pause := time.Millisecond
			if name != "Failed" {
				pause = time.Hour // which ends with the run
			}
			_, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(70), ordered(lifecyclev1alpha1.Rollout{PauseBetween: &metav1.Duration{Duration: pause}}))
			if err == nil {
				t.Fatal("the run was not stopped")
			}
			if d := cmp.Diff(tc.want, l.holders()); d != "" {
				t.Errorf("leases after %v (-want +got):\n%s", err, d)
			}
		})
	}
}

// TestDeleteNodeHasAllLeases: a run that removes a host has the leases of that host and of the
// control plane before it removes a member or drains a node.
func TestDeleteNodeHasAllLeases(t *testing.T) {
	l := built(t, 3, 1)
	rest := l.spec.DeepCopy()
	rest.Hosts = rest.Hosts[:2]
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	drained := false
	l.env.progress = func(op lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
		if s.ID != "drain/h-3" || s.State != lifecyclev1alpha1.StepRunning {
			return
		}
		drained = true
		if held := l.holders(); held["h-1"] != op.Name || held["h-3"] != op.Name {
			t.Errorf("leases when the node is drained: %v", held)
		}
	}
	l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"))
	if !drained {
		t.Error("the node was not drained")
	}
	if held := l.holders(); held["h-1"] != "" || held["h-2"] != "" {
		t.Errorf("leases after the run: %v", held)
	}
}
