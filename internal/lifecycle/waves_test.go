package lifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// withEtcdHosts returns a lab with a cluster of one control plane and three hosts that run only
// etcd, as real processes.
func withEtcdHosts(t *testing.T) (*lab, *etcds) {
	t.Helper()
	l := newLab(t, 4, 1)
	l.spec.Network.Plugin = plan.NetworkNone
	l.spec.Etcd.HeartbeatInterval, l.spec.Etcd.ElectionTimeout = 100, 1000
	l.spec.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
		clusterv1alpha1.RoleControlPlane: {"h-1"}, clusterv1alpha1.RoleEtcd: {"h-[2:4]"},
	}
	e := withEtcds(l)
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.engine.Settle, l.patient = 5*time.Second, true
	return l, e
}

// safetyChecks returns the safety checks that a run has recorded.
func (l *lab) safetyChecks(name string) []string {
	l.t.Helper()
	var checks []string
	for _, s := range l.kept(name).Status.Steps {
		if strings.HasPrefix(s.ID, "gate/") {
			checks = append(checks, s.ID+" "+string(s.State))
		}
	}
	return checks
}

// TestNewRoleKeepsSafetyChecks: hosts that run only etcd become workers, in the edit that changes
// an argument of etcd. The members still restart one by one, between safety checks.
func TestNewRoleKeepsSafetyChecks(t *testing.T) {
	withWorkers := func(spec *clusterv1alpha1.Provision) *clusterv1alpha1.Provision {
		spec.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-[2:4]"}
		return spec
	}
	t.Run("BadArgument", func(t *testing.T) {
		l, e := withEtcdHosts(t)
		pids := e.pids()
		end := l.hurried()
		op, err := l.run(lifecyclev1alpha1.ActionApply, withWorkers(l.etcdArgs("no-such-argument=1")))
		end()
		l.wantRefused(op, err, "host h-2 was changed", "etcd of host h-2: it does not run", "no other host of it is disturbed")
		if d := cmp.Diff(map[string]int{"h-3": pids["h-3"], "h-4": pids["h-4"]}, e.pids()); d != "" {
			t.Errorf("members that run (-want +got):\n%s", d)
		}
		e.wantMembers("h-3", "h-2", "h-3", "h-4") // only a majority returns this
		if d := cmp.Diff([]string{"gate/h-2/before Unchanged", "gate/h-2/after Failed"}, l.safetyChecks(op.Name)); d != "" {
			t.Errorf("safety checks in the record (-want +got):\n%s", d)
		}
		// The corrected spec starts the member and gives all hosts their role.
		good := withWorkers(l.etcdArgs("max-concurrent-streams=5000"))
		op = l.must(lifecyclev1alpha1.ActionApply, good)
		if d := cmp.Diff([]string{"h-2", "h-3", "h-4"}, e.restarted(pids)); d != "" {
			t.Errorf("restarted (-want +got):\n%s", d)
		}
		if got := l.safetyChecks(op.Name); !slices.Contains(got, "gate/h-3/after Unchanged") || !slices.Contains(got, "gate/h-4/after Unchanged") {
			t.Errorf("safety checks in the record: %v", got)
		}
	})
}
