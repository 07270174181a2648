package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/safety"
)

// withRealEtcd returns a lab with a built cluster and real etcd processes.
func withRealEtcd(t *testing.T, n, controlPlanes int) (*lab, *etcds) {
	t.Helper()
	l := newLab(t, n, controlPlanes)
	l.spec.Network.Plugin = plan.NetworkNone
	l.spec.Etcd.HeartbeatInterval, l.spec.Etcd.ElectionTimeout = 100, 1000
	e := withEtcds(l)
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.fleet.Forget()
	l.engine.Settle, l.patient = 5*time.Second, true
	return l, e
}

// etcdArgs returns a spec with other flags of etcd.
func (l *lab) etcdArgs(args ...string) *clusterv1alpha1.Provision {
	spec := l.spec.DeepCopy()
	spec.Etcd.ExtraArgs = args
	return spec
}

// apiServerArgs returns a spec with other flags of the API servers.
func (l *lab) apiServerArgs(args ...string) *clusterv1alpha1.Provision {
	spec := l.spec.DeepCopy()
	spec.Kubernetes.APIServerArgs = args
	return spec
}

// planes returns a spec with these hosts as control planes.
func (l *lab) planes(names ...string) *clusterv1alpha1.Provision {
	spec := l.spec.DeepCopy()
	spec.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleControlPlane: names}
	spec.Hosts = nil
	for _, h := range hosttest.Hosts(9) {
		if slices.Contains(names, h.Name) {
			spec.Hosts = append(spec.Hosts, h)
		}
	}
	return spec
}

// pids returns the process IDs of the running etcds, by host.
func (e *etcds) pids() map[string]int {
	pids := map[string]int{}
	for _, name := range e.hosts() {
		if e.member(name).runs() {
			pids[name] = e.pid(name)
		}
	}
	return pids
}

// restarted lists the hosts whose etcd has another process than before.
func (e *etcds) restarted(before map[string]int) []string {
	var names []string
	for name, pid := range e.pids() {
		if before[name] != pid {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// changed returns a function that lists the hosts whose agents got requests to apply, in order,
// each once.
func (l *lab) changed() func() []string {
	var mu sync.Mutex
	var order []string
	before := l.fleet.Fault
	l.fleet.Fault = func(name, command string) error {
		mu.Lock()
		defer mu.Unlock()
		if command == "apply" && !slices.Contains(order, name) {
			order = append(order, name)
		}
		if before != nil {
			return before(name, command)
		}
		return nil
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(order)
	}
}

// TestQuorumIsKept: a run that would cost the quorum of etcd or the last API server is refused
// before any change. Other runs continue.
func TestQuorumIsKept(t *testing.T) {
	l, e := withRealEtcd(t, 3, 3)
	before, pids := l.trees(), e.pids()
	refused := func(t *testing.T, spec *clusterv1alpha1.Provision, says ...string) {
		t.Helper()
		changed := l.changed()
		op, err := l.run(lifecyclev1alpha1.ActionApply, spec)
		l.wantRefused(op, err, says...)
		if _, ok := errors.AsType[*safety.RefusedError](err); !ok {
			t.Errorf("%T", err)
		}
		if got := changed(); len(got) > 0 {
			t.Errorf("changed were %v", got)
		}
		l.untouched(before, "h-1", "h-2", "h-3")
		if got := e.restarted(pids); len(got) > 0 {
			t.Errorf("etcd was restarted on %v", got)
		}
	}
	t.Run("HostUnreachable", func(t *testing.T) {
		l.unreachable("h-3")
		refused(t, l.etcdArgs("max-concurrent-streams=5000"), "host h-1 is not changed", "etcd would lose its quorum", "h-3: its host was not reached",
			"bring back host h-3", "orrery cluster delete-node CLUSTER h-3")
	})
	t.Run("MemberHangs", func(t *testing.T) {
		l.unreachable()
		syscall.Kill(e.pid("h-3"), syscall.SIGSTOP)
		defer syscall.Kill(e.pid("h-3"), syscall.SIGCONT)
		refused(t, l.etcdArgs("max-concurrent-streams=5000"), "host h-1 is not changed", "etcd would lose its quorum", "wait until etcd answers on host h-3")
	})
	t.Run("WithoutQuorum", func(t *testing.T) {
		l.unreachable("h-2", "h-3")
		refused(t, l.etcdArgs("max-concurrent-streams=5000"), "etcd would lose its quorum", "bring back hosts h-2, h-3")
	})
	t.Run("LastAPIServer", func(t *testing.T) {
		l.unreachable("h-2", "h-3")
		refused(t, l.apiServerArgs("max-requests-inflight=500"), "host h-1 is not changed", "no API server but that of host h-1")
	})
	t.Run("KubeletOnly", func(t *testing.T) {
		l.unreachable("h-3")
		op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(61))
		l.wantRefused(op, err, "all other hosts are done", "h-3")
		if !strings.Contains(l.tree("h-2")["/etc/kubernetes/kubelet.yaml"], "maxPods: 61") {
			t.Error("host h-2 does not have what costs no quorum")
		}
	})
	t.Run("WhenItIsBack", func(t *testing.T) {
		l.unreachable()
		l.must(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
		if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, e.restarted(pids)); d != "" {
			t.Errorf("restarted (-want +got):\n%s", d)
		}
		e.wantMembers("h-1", "h-1", "h-2", "h-3")
	})
}

// TestOneAtATime: etcd members restart one by one, and the quorum is kept.
func TestOneAtATime(t *testing.T) {
	l, e := withRealEtcd(t, 3, 3)
	var mu sync.Mutex
	var order []string
	changing := map[string]bool{}
	done := l.fleet.Applied
	l.fleet.Applied = func(name string, req node.Request) {
		done(name, req)
		mu.Lock()
		defer mu.Unlock()
		delete(changing, name)
	}
	l.fleet.Fault = func(name, command string) error {
		if command != "apply" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if changing[name] = true; len(changing) > 1 {
			t.Errorf("these hosts are changed at once: %v", changing)
		}
		// All members must run, vote and answer before each change. On a busy machine an answer is
		// late, or they elect a leader. No host is changed before this function returns.
		for _, h := range l.spec.Hosts {
			m := e.member(h.Name)
			if m.runs() {
				e.awaitVote(h.Name, m)
			}
			if !m.runs() {
				t.Errorf("etcd of host %s does not run, before host %s is changed", h.Name, name)
			}
		}
		order = append(order, name)
		return nil
	}
	pids := e.pids()
	op := l.must(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
	if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, slices.Compact(order)); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	if n := len(e.restarted(pids)); n != 3 {
		t.Errorf("%d members were restarted", n)
	}
	var checks []string
	for _, s := range op.Status.Steps {
		if strings.HasPrefix(s.ID, "gate/") {
			checks = append(checks, fmt.Sprint(s.ID, " ", s.State))
		}
	}
	want := []string{
		"gate/h-1/before Unchanged", "gate/h-1/after Unchanged", "gate/h-2/before Unchanged", "gate/h-2/after Unchanged",
		"gate/h-3/before Unchanged", "gate/h-3/after Unchanged",
	}
	if d := cmp.Diff(want, checks); d != "" {
		t.Errorf("safety checks in the record (-want +got):\n%s", d)
	}
}

// TestBadArgumentCostsOneMember: an invalid flag of etcd stops one member. The run stops there, and
// the corrected spec brings the member back.
func TestBadArgumentCostsOneMember(t *testing.T) {
	l, e := withRealEtcd(t, 3, 3)
	pids := e.pids()
	changed := l.changed()
	end := l.hurried()
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.etcdArgs("no-such-argument=1"))
	end()
	l.wantRefused(op, err, "host h-1 was changed", "etcd of host h-1: it does not run", "no other host of it is disturbed", "correct what was changed")
	if d := cmp.Diff([]string{"h-1"}, changed()); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]int{"h-2": pids["h-2"], "h-3": pids["h-3"]}, e.pids()); d != "" {
		t.Errorf("members that run (-want +got):\n%s", d)
	}
	e.wantMembers("h-2", "h-1", "h-2", "h-3") // only a majority returns this
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	if d := cmp.Diff([]string{"h-1"}, e.restarted(pids)); d != "" {
		t.Errorf("restarted (-want +got):\n%s", d)
	}
	e.wantMembers("h-1", "h-1", "h-2", "h-3")
}

// TestFailedStepStopsThere: after a failed step on a control plane the others stay unchanged, and
// the error says what to do.
func TestFailedStepStopsThere(t *testing.T) {
	l, e := withRealEtcd(t, 3, 3)
	pids := e.pids()
	changed := l.changed()
	l.fleet.NodeFault = func(name, point string) error {
		if name == "h-1" && point == "unit/installed" {
			return errors.New("broken off")
		}
		return nil
	}
	end := l.patiently()
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
	end()
	l.wantRefused(op, err, "host h-1: etcd/unit: broken off", "no other host of the control plane is disturbed", "correct what was changed")
	if d := cmp.Diff([]string{"h-1"}, changed()); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	l.fleet.NodeFault = nil
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, e.restarted(pids)); d != "" {
		t.Errorf("restarted (-want +got):\n%s", d)
	}
}

// TestRepairsComeFirst: components that are down are repaired before others are disturbed.
func TestRepairsComeFirst(t *testing.T) {
	t.Run("StoppedMember", func(t *testing.T) {
		l, e := withRealEtcd(t, 3, 3)
		e.fail("h-3")
		pids := e.pids()
		l.must(lifecyclev1alpha1.ActionApply, l.spec)
		if d := cmp.Diff([]string{"h-3"}, e.restarted(pids)); d != "" {
			t.Errorf("restarted (-want +got):\n%s", d)
		}
		e.fail("h-2")
		changed := l.changed()
		l.must(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
		if d := cmp.Diff([]string{"h-2", "h-1", "h-3"}, changed()); d != "" {
			t.Errorf("order (-want +got):\n%s", d)
		}
		e.wantMembers("h-1", "h-1", "h-2", "h-3")
	})
	t.Run("AllStopped", func(t *testing.T) {
		l, e := withRealEtcd(t, 3, 3)
		e.fail("h-1", "h-2", "h-3")
		for _, h := range l.spec.Hosts {
			l.stopUnit(h.Name, "orrery-kube-apiserver")
		}
		if _, changes, err := l.engine.Plan(t.Context(), l.spec); err != nil || len(changes.Items) != 6 {
			t.Errorf("the plan of a cluster that was powered off: %+v %v", changes, err)
		}
		l.must(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
		e.wantMembers("h-1", "h-1", "h-2", "h-3")
	})
}

// TestPoweredOffAfterItGrew: members that joined one after another are started together when all
// are down.
func TestPoweredOffAfterItGrew(t *testing.T) {
	l, e := withRealEtcd(t, 1, 1)
	l.spec = l.planes("h-1", "h-2", "h-3")
	l.must(lifecyclev1alpha1.ActionAddNode, l.spec, hosts("h-2", "h-3"))
	e.fail("h-1", "h-2", "h-3")
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	e.wantMembers("h-3", "h-1", "h-2", "h-3")
}

// TestOneControlPlaneHasNoSpare: the plan shows the outage, and the run continues.
func TestOneControlPlaneHasNoSpare(t *testing.T) {
	l, e := withRealEtcd(t, 1, 1)
	pids := e.pids()
	_, changes, err := l.engine.Plan(t.Context(), l.etcdArgs("max-concurrent-streams=5000"))
	if err != nil {
		t.Fatal(err)
	}
	const outage = "while host h-1 is changed etcd has no quorum and no API server answers"
	if len(changes.Outages) != 1 || !strings.Contains(changes.Outages[0], outage) {
		t.Errorf("outages: %v", changes.Outages)
	}
	var printed strings.Builder
	changes.Print(&printed)
	if !strings.Contains(printed.String(), "Outage: "+outage) {
		t.Errorf("the plan does not say it: %s", printed.String())
	}
	l.must(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
	if d := cmp.Diff([]string{"h-1"}, e.restarted(pids)); d != "" {
		t.Errorf("restarted (-want +got):\n%s", d)
	}
	if _, changes, err = l.engine.Plan(t.Context(), l.etcdArgs("max-concurrent-streams=5000")); err != nil || len(changes.Outages) > 0 {
		t.Errorf("outages of a plan that changes nothing: %v %v", changes, err)
	}
}

// TestJoinsEtcd: new control planes join as learners and become voting members. A resumed run
// completes an interrupted join.
func TestJoinsEtcd(t *testing.T) {
	l, e := withRealEtcd(t, 1, 1)
	grown := l.planes("h-1", "h-2", "h-3")
	l.spec = grown
	starts := 0
	l.fleet.Fault = func(name, command string) error {
		// The agent of h-2 gets its content first and then its stages. etcd is the second stage.
		if name != "h-2" || command != "apply" {
			return nil
		}
		if members, _ := e.list("h-1"); len(members) < 2 { // empty while etcd does not answer
			return nil
		}
		if starts++; starts > 1 {
			return nil
		}
		return &host.Unreachable{Host: name, Address: "10.77.0.2:22", Err: syscall.ECONNRESET}
	}
	op, err := l.run(lifecyclev1alpha1.ActionAddNode, grown, hosts("h-2", "h-3"))
	l.wantRefused(op, err, "host h-2: unreachable")
	members, err := e.list("h-1")
	if err != nil || len(members) != 2 || !members[0].IsLearner && !members[1].IsLearner {
		t.Fatalf("members after a join that broke off: %v %v", members, err)
	}
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	e.wantMembers("h-3", "h-1", "h-2", "h-3")
}

// TestLeavesEtcd: members are removed while the remaining ones have a quorum, dead ones first.
func TestLeavesEtcd(t *testing.T) {
	t.Run("TheDead", func(t *testing.T) {
		l, e := withRealEtcd(t, 3, 3)
		e.stop("h-3")
		l.unreachable("h-3")
		op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-1", "h-3"), hosts("h-2"))
		l.wantRefused(op, err, "etcd would lose its quorum: of the 2 members that would stay 1 answer", "h-3: its host was not reached")
		e.wantMembers("h-1", "h-1", "h-2", "h-3")
		rest := l.planes("h-1", "h-2")
		l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"), forget)
		e.wantMembers("h-2", "h-1", "h-2")
		// With two members none is spare, until a third has joined.
		l.unreachable()
		l.spec = rest
		op, err = l.run(lifecyclev1alpha1.ActionApply, l.etcdArgs("max-concurrent-streams=5000"))
		l.wantRefused(op, err, "etcd would lose its quorum", "of 2 members 1 would be left", "add a member first")
		l.spec = l.planes("h-1", "h-2", "h-4")
		l.must(lifecyclev1alpha1.ActionAddNode, l.etcdArgs("max-concurrent-streams=5000"), hosts("h-4"))
		e.wantMembers("h-4", "h-1", "h-2", "h-4")
	})
	t.Run("TheLiving", func(t *testing.T) {
		l, e := withRealEtcd(t, 3, 3)
		l.must(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-2", "h-3"), hosts("h-1"))
		e.wantMembers("h-2", "h-2", "h-3")
	})
	t.Run("TheDeadBeforeTheLiving", func(t *testing.T) {
		l, e := withRealEtcd(t, 5, 5)
		e.stop("h-4")
		e.stop("h-5")
		l.unreachable("h-4", "h-5")
		l.must(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-1", "h-2", "h-5"), hosts("h-3", "h-4"), forget)
		e.wantMembers("h-1", "h-1", "h-2", "h-5")
	})
	// Changes of the others that cost the quorum are refused while the dead member exists, and after
	// its removal.
	t.Run("TheDeadWhileOthersWait", func(t *testing.T) {
		l, e := withRealEtcd(t, 3, 3)
		e.stop("h-3")
		l.unreachable("h-3")
		state := l.state()
		// Another version of Orrery may have applied other flags.
		state.Applied.Etcd.ExtraArgs = []string{"max-concurrent-streams=5000"}
		if err := l.store.Save(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		pids := e.pids()
		l.spec = l.planes("h-1", "h-2")
		l.must(lifecyclev1alpha1.ActionDeleteNode, l.etcdArgs("max-concurrent-streams=5000"), hosts("h-3"), forget)
		e.wantMembers("h-1", "h-1", "h-2")
		if got := e.restarted(pids); len(got) > 0 {
			t.Errorf("restarted were %v", got)
		}
	})
}

// TestSafetyCheckIsCanceled: a run that waits for the control plane to recover ends when it is
// canceled.
func TestSafetyCheckIsCanceled(t *testing.T) {
	l, _ := withRealEtcd(t, 3, 3)
	l.engine.Settle = time.Hour
	store := &asked{Files: l.store, noticed: make(chan struct{})}
	l.env.Store = store
	done := l.fleet.Applied
	l.fleet.Applied = func(name string, req node.Request) {
		done(name, req)
		if slices.ContainsFunc(req.Steps, func(s plan.Step) bool { return s.ID == plan.StepEtcdUnit }) {
			if err := l.store.Control(context.Background(), "oak-2", func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true }); err != nil {
				t.Error(err)
			}
		}
	}
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.etcdArgs("no-such-argument=1"))
	if err == nil || l.kept(op.Name).Status.Phase != lifecyclev1alpha1.PhaseCanceled {
		t.Errorf("it ended with %v", err)
	}
}
