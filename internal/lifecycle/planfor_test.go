package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// planFor returns the changes of an Operation.
func (l *lab) planFor(action lifecyclev1alpha1.Action, spec *clusterv1alpha1.Provision, set ...func(*lifecyclev1alpha1.OperationSpec)) *plan.Changes {
	l.t.Helper()
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: action}}
	for _, s := range set {
		s(&op.Spec)
	}
	changes, err := l.engine.PlanFor(l.t.Context(), op, spec)
	if err != nil {
		l.t.Fatal(err)
	}
	return changes
}

// byHash makes an Operation do only the plan with a hash.
func byHash(hash string) func(*lifecyclev1alpha1.OperationSpec) {
	return func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = hash }
}

func stepIDs(changes *plan.Changes) []string {
	var ids []string
	for _, s := range changes.Steps {
		ids = append(ids, s.ID)
	}
	return ids
}

// stepStates returns the states of the steps in the cluster, without waits and safety checks.
func stepStates(op *lifecyclev1alpha1.Operation) []string {
	var states []string
	for _, s := range op.Status.Steps {
		if s.Host == "cluster" && !strings.HasPrefix(s.ID, "gate/") && !strings.HasPrefix(s.ID, "ready/") &&
			!strings.HasPrefix(s.ID, "nodes/") && !strings.HasPrefix(s.ID, "objects/") {
			states = append(states, fmt.Sprint(s.ID, " ", s.State))
		}
	}
	return states
}

// TestPlanOfDeleteNode: deleting nodes has a plan with the steps in the cluster and what is undone.
// A run with its hash does this plan or nothing. A resumed run asks the cluster what is left to do.
func TestPlanOfDeleteNode(t *testing.T) {
	l, e := withRealEtcd(t, 3, 3)
	rest := l.planes("h-1", "h-2")
	before := l.trees()
	changes := l.planFor(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"))
	if d := cmp.Diff([]string{"cordon/h-3", "drain/h-3", "etcd/remove-h-3", "node/h-3"}, stepIDs(changes)); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"h-3"}, changes.Undone); d != "" {
		t.Errorf("undone: %s", d)
	}
	var shown strings.Builder
	changes.Print(&shown)
	for _, want := range []string{"h-3\n    - all that was done: ", "steps [data]\n", "    * Drain h-3 [drain]\n", "    * EtcdMemberRemove h-3\n", "    * NodeObject (deleted) h-3\n"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not shown:\n%s", want, shown.String())
		}
	}
	if again := l.planFor(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3")); again.Hash != changes.Hash {
		t.Errorf("the same has another hash: %s and %s", changes.Hash, again.Hash)
	}
	l.untouched(before, "h-1", "h-2", "h-3")

	op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-1", "h-3"), hosts("h-2"), byHash(changes.Hash))
	l.wantRefused(op, err, "not "+changes.Hash, "orrery cluster delete-node oak h-2 --dry-run")
	l.untouched(before, "h-1", "h-2", "h-3")
	if got := l.cordoned(); len(got) > 0 {
		t.Errorf("cordoned are %v", got)
	}
	e.wantMembers("h-1", "h-1", "h-2", "h-3")

	// The connection to the host is lost after its member was removed.
	l.fleet.Fault = func(name, command string) error {
		if name == "h-3" && command == "apply" {
			return &host.Unreachable{Host: name, Address: "10.77.0.3:22", Err: syscall.ECONNRESET}
		}
		return nil
	}
	op, err = l.run(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"), byHash(changes.Hash))
	says(t, err, "host h-3: unreachable")
	want := []string{"cordon/h-3 Changed", "drain/h-3 Unchanged", "etcd/remove-h-3 Changed", "kubeconfig Unchanged"}
	if d := cmp.Diff(want, stepStates(l.kept(op.Name))); d != "" {
		t.Errorf("before it broke off (-want +got):\n%s", d)
	}
	e.wantMembers("h-1", "h-1", "h-2")
	l.fleet.Fault = nil
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	states := stepStates(l.kept(op.Name))
	for _, want := range []string{"cordon/h-3 Unchanged", "drain/h-3 Unchanged", "node/h-3 Changed"} {
		if !slices.Contains(states, want) {
			t.Errorf("resumed: %v lacks %q", states, want)
		}
	}
	if tree := l.tree("h-3"); len(tree) != 2 {
		t.Errorf("host h-3 has %v", paths(tree))
	}
}

// TestPlanOfDelete: deleting a cluster has a plan with everything that is undone on its hosts, and
// the outage.
func TestPlanOfDelete(t *testing.T) {
	l := built(t, 2, 1)
	changes := l.planFor(lifecyclev1alpha1.ActionDelete, l.spec)
	if d := cmp.Diff([]string{"h-1", "h-2"}, changes.Undone); d != "" {
		t.Errorf("undone: %s", d)
	}
	if len(changes.Outages) != 1 || !strings.Contains(changes.Outages[0], "cluster oak is gone with its data") {
		t.Errorf("outages: %v", changes.Outages)
	}
	before := l.trees()
	op, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec, byHash(strings.Repeat("0", 32)))
	l.wantRefused(op, err, "the plan is "+changes.Hash, "orrery cluster delete oak --dry-run")
	l.untouched(before, "h-1", "h-2")
	op = l.must(lifecyclev1alpha1.ActionApply, l.maxPods(50))
	for _, p := range l.kept(op.Name).Status.Plan { // the record has the plan of the run
		if len(p.Hosts) == 0 || len(p.Changes) == 0 || !strings.HasPrefix(p.Changes[0], "~ ") || p.Left > 0 {
			t.Errorf("the record says of hosts %v: %v and %d more", p.Hosts, p.Changes, p.Left)
		}
	}
	_, err = l.run(lifecyclev1alpha1.ActionDelete, l.spec, byHash(changes.Hash))
	says(t, err, "not "+changes.Hash)
	op = l.must(lifecyclev1alpha1.ActionDelete, l.spec, byHash(l.planFor(lifecyclev1alpha1.ActionDelete, l.spec).Hash))
	var undone []string
	for _, p := range l.kept(op.Name).Status.Plan {
		undone = append(undone, p.Hosts...)
		if i := slices.IndexFunc(p.Changes, func(c string) bool { return !strings.HasPrefix(c, "- ") }); i >= 0 {
			t.Errorf("the record of undoing a cluster says %q", p.Changes[i])
		}
	}
	if slices.Sort(undone); !slices.Equal(undone, []string{"h-1", "h-2"}) {
		t.Errorf("the record says that hosts %v are undone", undone)
	}
	for name, tree := range l.trees() {
		if len(tree) != 2 {
			t.Errorf("host %s has %v", name, paths(tree))
		}
	}
}

// TestPlanOfAddNode: the plan for an added control plane has its etcd member. An interrupted join
// is found by asking etcd.
func TestPlanOfAddNode(t *testing.T) {
	l, e := withRealEtcd(t, 1, 1)
	grown := l.planes("h-1", "h-2", "h-3")
	l.spec = grown
	changes := l.planFor(lifecyclev1alpha1.ActionAddNode, grown, hosts("h-2", "h-3"))
	want := []string{"etcd/add-h-2", "etcd/promote-h-2", "etcd/add-h-3", "etcd/promote-h-3", "node/h-2", "node/h-3"}
	if d := cmp.Diff(want, stepIDs(changes)); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
	op, err := l.run(lifecyclev1alpha1.ActionAddNode, grown, hosts("h-2", "h-3"), byHash(strings.Repeat("0", 32)))
	l.wantRefused(op, err, "the plan is "+changes.Hash, "add-node --dry-run")
	broken := false
	l.fleet.Fault = func(name, command string) error {
		if members, _ := e.list("h-1"); name == "h-2" && command == "apply" && len(members) == 2 && !broken {
			broken = true
			return &host.Unreachable{Host: name, Address: "10.77.0.2:22", Err: syscall.ECONNRESET}
		}
		return nil
	}
	op, err = l.run(lifecyclev1alpha1.ActionAddNode, grown, hosts("h-2", "h-3"), byHash(changes.Hash))
	says(t, err, "host h-2: unreachable")
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	states := stepStates(l.kept(op.Name))
	for _, want := range []string{"etcd/add-h-2 Unchanged", "etcd/promote-h-2 Changed", "etcd/add-h-3 Changed", "etcd/promote-h-3 Changed"} {
		if !slices.Contains(states, want) {
			t.Errorf("resumed: %v lacks %q", states, want)
		}
	}
	e.wantMembers("h-3", "h-1", "h-2", "h-3")
}

// TestNoNodeAnyMore: a host that keeps etcd but is no worker any more is drained before its kubelet
// is removed, and its Node is deleted. An interrupted run is resumed.
func TestNoNodeAnyMore(t *testing.T) {
	l := newLab(t, 4, 1)
	l.spec.RoleGroups[clusterv1alpha1.RoleEtcd] = clusterv1alpha1.HostNames{"h-[1:3]"}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	rest := l.spec.DeepCopy()
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-3", "h-4"}
	changes := l.planFor(lifecyclev1alpha1.ActionApply, rest)
	if d := cmp.Diff([]string{"cordon/h-2", "drain/h-2", "node/h-2"}, stepIDs(changes)); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
	l.fleet.Broken = func(name, command string) error {
		if name == "h-2" && command == "apply" {
			return &host.Unreachable{Host: name, Address: "10.77.0.2:22", Err: syscall.ECONNRESET}
		}
		return nil
	}
	op, err := l.run(lifecyclev1alpha1.ActionApply, rest, byHash(changes.Hash))
	says(t, err, "host h-2: unreachable")
	if got := l.cordoned(); !slices.Equal(got, []string{"h-2"}) {
		t.Errorf("cordoned are %v", got)
	}
	l.fleet.Broken = nil
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	if got := l.cordoned(); len(got) > 0 {
		t.Errorf("cordoned are %v", got)
	}
}

// unlockable is a Store that cannot lock a cluster.
type unlockable struct {
	lifecycle.Store

	err error
}

func (u unlockable) Lock(context.Context, string) (func(), error) { return nil, u.err }

// TestPlanThatCannotKeepItsKeys: a plan whose keys cannot be saved is an error, since a run would
// make another plan. While a run works on the cluster, that run saves its own keys.
func TestPlanThatCannotKeepItsKeys(t *testing.T) {
	l := newLab(t, 1, 1)
	full := errors.New("no space left on device")
	l.env.Store = unlockable{l.store, full}
	if _, _, err := l.engine.Plan(t.Context(), l.spec); !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
	unlock, err := l.store.Lock(t.Context(), "oak")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	l.env.Store = l.store
	if _, _, err := l.engine.Plan(t.Context(), l.spec); err != nil {
		t.Errorf("while a run works on the cluster: %v", err)
	}
}

// TestPreflightIsInterrupted: an interrupted preflight ends with an error, and not with findings
// about the hosts that it was reading.
func TestPreflightIsInterrupted(t *testing.T) {
	l := newLab(t, 2, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	l.fleet.Fault = func(_, command string) error {
		if command != "facts" {
			return nil
		}
		interrupt()
		return errors.New("the session ended")
	}
	if findings, err := l.engine.Preflight(ctx, l.spec); !errors.Is(err, context.Canceled) {
		t.Errorf("findings %v, error %v, want %v", findings, err, context.Canceled)
	}
}
