package lifecycle_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// lose removes directories from a host without Orrery.
func (l *lab) lose(name string, dirs ...string) {
	l.t.Helper()
	for _, dir := range dirs {
		if err := os.RemoveAll(filepath.Join(l.fleet.Root(name), dir)); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestAgentGone: a host that lost the agent and all programs is still identified by its record.
func TestAgentGone(t *testing.T) {
	t.Run("Delete", func(t *testing.T) {
		l := built(t, 2, 1)
		l.lose("h-2", "/opt/orrery")
		l.must(lifecyclev1alpha1.ActionDelete, l.spec)
		l.gone("h-1", "h-2")
	})
	t.Run("DeleteNode", func(t *testing.T) {
		l := built(t, 2, 1)
		l.lose("h-2", "/opt/orrery")
		rest := l.spec.DeepCopy()
		rest.Hosts = rest.Hosts[:1]
		delete(rest.RoleGroups, clusterv1alpha1.RoleWorker)
		l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-2"))
		if tree := l.tree("h-2"); len(tree) != 2 {
			t.Errorf("host h-2 has %v", paths(tree))
		}
	})
	t.Run("Apply", func(t *testing.T) {
		l := built(t, 2, 1)
		before := l.trees()
		l.lose("h-2", "/opt/orrery")
		_, changes, err := l.engine.Plan(t.Context(), l.spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes.Items {
			if c.Host != "h-2" || c.Op != plan.OpRepair {
				t.Errorf("the plan has %+v", c)
			}
		}
		if len(changes.Items) == 0 {
			t.Error("the plan is empty")
		}
		l.must(lifecyclev1alpha1.ActionApply, l.spec)
		l.untouched(before, "h-1", "h-2")
	})
	t.Run("OfAnotherCluster", func(t *testing.T) {
		l := built(t, 1, 1)
		l.lose("h-1", "/opt/orrery")
		before := l.trees()
		other := newLab(t, 1, 1)
		other.fleet.Dir = l.fleet.Dir
		op, err := other.run(lifecyclev1alpha1.ActionCreate, other.spec)
		other.wantRefused(op, err, "host h-1", "belongs to another cluster", "oak")
		l.untouched(before, "h-1")
	})
}

// TestRecordGone: a host without a record is not reported as clean while files are left. The keys
// of the cluster are kept.
func TestRecordGone(t *testing.T) {
	lost := func(t *testing.T) *lab {
		t.Helper()
		l := built(t, 2, 1)
		l.lose("h-2", "/opt/orrery", "/var/lib/orrery")
		return l
	}
	t.Run("Refused", func(t *testing.T) {
		l := lost(t)
		before := l.trees()
		op, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec)
		l.wantRefused(op, err, "host h-2: the record", "/etc/kubernetes/kubelet.conf", "by hand", "--forget-unreachable")
		l.untouched(before, "h-1", "h-2")
		if state := l.state(); state == nil || len(state.Keys) == 0 {
			t.Fatal("the keys are gone")
		}
		// The host is cleaned by hand, and the run continues.
		for _, path := range paths(l.tree("h-2")) {
			if path != "" && path != "/opt" {
				l.lose("h-2", path)
			}
		}
		if err := l.resume(op.Name); err != nil {
			t.Fatal(err)
		}
		l.gone("h-1", "h-2")
	})
	t.Run("DeleteNode", func(t *testing.T) {
		l := lost(t)
		before := l.trees()
		rest := l.spec.DeepCopy()
		rest.Hosts = rest.Hosts[:1]
		delete(rest.RoleGroups, clusterv1alpha1.RoleWorker)
		op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-2"))
		l.wantRefused(op, err, "host h-2: the record", "/etc/kubernetes/kubelet.conf")
		l.untouched(before, "h-1", "h-2")
		l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-2"), forget)
		l.untouched(before, "h-1", "h-2")
	})
	t.Run("Forgotten", func(t *testing.T) {
		l := lost(t)
		before := l.tree("h-2")
		l.must(lifecyclev1alpha1.ActionDelete, l.spec, forget)
		l.gone("h-1")
		if _, ok := before["/etc/kubernetes/kubelet.conf"]; !ok {
			t.Error("nothing was on host h-2")
		}
		l.untouched(map[string]map[string]string{"h-2": before}, "h-2")
	})
	t.Run("Damaged", func(t *testing.T) {
		l := built(t, 2, 1)
		for _, file := range []string{"state.json", "state.json.bak"} {
			if err := os.Truncate(filepath.Join(l.fleet.Root("h-2"), "/var/lib/orrery/node", file), 7); err != nil {
				t.Fatal(err)
			}
		}
		l.lose("h-2", "/opt/orrery/bin/orrery")
		op, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec)
		l.wantRefused(op, err, "h-2", "damaged")
		if l.state() == nil {
			t.Error("the keys are gone")
		}
	})
	t.Run("HalfRemoved", func(t *testing.T) {
		l := newLab(t, 2, 1)
		l.install("h-2")
		l.must(lifecyclev1alpha1.ActionCreate, l.spec)
		// The removal fails after the record is gone. Then the agent is lost too.
		l.fleet.NodeFault = func(name, point string) error {
			if name == "h-2" && point == "leave/removed" {
				return errors.New("broken off")
			}
			return nil
		}
		op, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec)
		l.wantRefused(op, err, "h-2", "broken off")
		l.fleet.NodeFault = nil
		l.lose("h-2", "/opt/orrery/bin/orrery")
		if err := l.resume(op.Name); err != nil {
			t.Fatal(err)
		}
		l.gone("h-1")
		if d := cmp.Diff([]string{"", "/opt", "/var", "/var/lib"}, paths(l.tree("h-2"))); d != "" {
			t.Errorf("host h-2 (-want +got):\n%s", d)
		}
	})
}
