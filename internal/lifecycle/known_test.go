package lifecycle_test

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// breakAt breaks the connection to a host after n requests to its agent.
func (l *lab) breakAt(name string, n int) {
	var mu sync.Mutex
	asked := 0
	l.fleet.Fault = func(at, command string) error {
		if at != name || command != "apply" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked <= n {
			return nil
		}
		return &host.Unreachable{Host: at, Address: "10.77.0.0:22", Err: syscall.ECONNRESET}
	}
}

// gone checks that nothing of the cluster is left on hosts or in the store.
func (l *lab) gone(names ...string) {
	l.t.Helper()
	for _, name := range names {
		if tree := l.tree(name); len(tree) != 2 {
			l.t.Errorf("host %s has %v", name, paths(tree))
		}
	}
	if l.state() != nil {
		l.t.Error("the state is left")
	}
}

// TestHalfAddedIsKnown: a half-added host is known until it is undone, through all runs in between.
func TestHalfAddedIsKnown(t *testing.T) {
	l := built(t, 3, 1)
	grown := l.grown()
	l.breakAt("h-4", 2)
	_, err := l.run(lifecyclev1alpha1.ActionAddNode, grown, hosts("h-4"))
	says(t, err, "h-4", "unreachable")
	l.fleet.Fault = nil
	if len(l.tree("h-4")) <= 2 {
		t.Fatal("nothing was begun on host h-4")
	}
	rest, left := l.without()
	l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts(left))
	l.must(lifecyclev1alpha1.ActionApply, rest)
	if d := cmp.Diff([]string{"h-1", "h-2", "h-4"}, namesOf(l.state().Everything().Hosts)); d != "" {
		t.Errorf("hosts that are known (-want +got):\n%s", d)
	}
	l.must(lifecyclev1alpha1.ActionDelete, rest)
	l.gone("h-1", "h-2", "h-3", "h-4")
}

// TestLostHosts: a spec without hosts of the cluster is refused before any host is asked.
func TestLostHosts(t *testing.T) {
	l := built(t, 3, 1)
	rest, gone := l.without()
	for name, run := range map[string]func() (*lifecyclev1alpha1.Operation, error){
		"Apply": func() (*lifecyclev1alpha1.Operation, error) { return l.run(lifecyclev1alpha1.ActionApply, rest) },
		"DeleteOfAnother": func() (*lifecyclev1alpha1.Operation, error) {
			return l.run(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-2"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l.fleet.Forget()
			op, err := run()
			l.wantRefused(op, err, gone, "put them back")
			if commands := l.fleet.Commands("h-1"); len(commands) > 0 {
				t.Errorf("host h-1: %v", commands)
			}
			if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, namesOf(l.state().Applied.Hosts)); d != "" {
				t.Errorf("hosts of the cluster (-want +got):\n%s", d)
			}
		})
	}
}

// begunCreate returns a lab of four hosts. The creation of a cluster with three control planes was
// interrupted on h-3, after the etcd of the others had started.
func begunCreate(t *testing.T) (l *lab, first *clusterv1alpha1.Provision) {
	t.Helper()
	l = newLab(t, 4, 3)
	l.spec.Network.Plugin = plan.NetworkNone
	first = l.spec.DeepCopy()
	first.Hosts = first.Hosts[:3]
	delete(first.RoleGroups, clusterv1alpha1.RoleWorker)
	var mu sync.Mutex
	started := map[string]bool{}
	both := make(chan struct{})
	asked := 0
	l.fleet.Fault = func(name, command string) error {
		if name != "h-3" || command != "apply" {
			return nil
		}
		if asked++; asked <= 2 {
			return nil
		}
		await(t, "the etcd of the other hosts has started", both)
		return &host.Unreachable{Host: name, Address: "10.77.0.3:22", Err: syscall.ECONNRESET}
	}
	l.fleet.Applied = func(name string, req node.Request) {
		l.register(name, req)
		mu.Lock()
		defer mu.Unlock()
		if slices.ContainsFunc(req.Steps, func(s plan.Step) bool { return s.ID == plan.StepEtcdUnit }) && !started[name] {
			if started[name] = true; len(started) == 2 {
				close(both)
			}
		}
	}
	_, err := l.run(lifecyclev1alpha1.ActionCreate, first)
	says(t, err, "h-3", "unreachable")
	l.fleet.Fault = nil
	return l, first
}

// TestReplacedInTheFirstCreate: an interrupted first create is completed on its hosts, or undone on
// all of them.
func TestReplacedInTheFirstCreate(t *testing.T) {
	controlPlanes := func(spec *clusterv1alpha1.Provision, names ...string) {
		spec.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleControlPlane: names}
	}
	l, first := begunCreate(t)
	before := map[string]map[string]string{}
	for _, h := range first.Hosts {
		before[h.Name] = l.tree(h.Name)
	}
	l.env.target = func(h clusterv1alpha1.Host) host.Target {
		for _, at := range l.spec.Hosts { // the address alone selects the machine
			if at.Address == h.Address {
				h.Name = at.Name
			}
		}
		return host.Target{Name: h.Name, Address: h.Address}
	}
	for name, tc := range map[string]struct {
		change func(*clusterv1alpha1.Provision)
		says   []string
	}{
		"Replaced": {
			change: func(p *clusterv1alpha1.Provision) {
				p.Hosts[2] = l.spec.Hosts[3]
				controlPlanes(p, "h-1", "h-2", "h-4")
			},
			says: []string{"hosts: h-3 missing", "put them back", "begin anew"},
		},
		"AnotherMachine": {
			change: func(p *clusterv1alpha1.Provision) {
				p.Hosts[2].Address = l.spec.Hosts[3].Address
			},
			says: []string{"host h-3 was at " + first.Hosts[2].Address, "set the address back"},
		},
		"AnotherRole": {
			change: func(p *clusterv1alpha1.Provision) {
				p.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
					clusterv1alpha1.RoleControlPlane: {"h-1"}, clusterv1alpha1.RoleWorker: {"h-2", "h-3"},
				}
			},
			says: []string{"roleGroups: an unfinished run has begun to make host h-2 a member of the etcd", "begin anew"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := first.DeepCopy()
			tc.change(spec)
			op, err := l.run(lifecyclev1alpha1.ActionCreate, spec)
			l.wantRefused(op, err, tc.says...)
			l.untouched(before, "h-1", "h-2", "h-3")
			if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, namesOf(l.state().Known())); d != "" {
				t.Errorf("hosts that are known (-want +got):\n%s", d)
			}
		})
	}
	t.Run("Undone", func(t *testing.T) {
		l.must(lifecyclev1alpha1.ActionDelete, l.state().Everything())
		l.gone("h-1", "h-2", "h-3")
	})
	t.Run("Finished", func(t *testing.T) {
		l, first := begunCreate(t)
		l.must(lifecyclev1alpha1.ActionCreate, first)
		state := l.state()
		if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, namesOf(state.Applied.Hosts)); d != "" || len(state.Begun) > 0 {
			t.Errorf("hosts of the cluster (-want +got):\n%s\nbegun: %v", d, namesOf(state.Begun))
		}
	})
}

// TestAnotherMemberHasBegunToJoin: no member is added to etcd while an unfinished run has begun to
// add a member that the spec lacks. etcd would refuse the list of members.
func TestAnotherMemberHasBegunToJoin(t *testing.T) {
	l := built(t, 1, 1)
	with := func(names ...string) *clusterv1alpha1.Provision {
		spec := l.spec.DeepCopy()
		spec.RoleGroups[clusterv1alpha1.RoleControlPlane] = append(clusterv1alpha1.HostNames{"h-1"}, names...)
		for _, h := range hosttest.Hosts(5) {
			if slices.Contains(names, h.Name) {
				spec.Hosts = append(spec.Hosts, h)
			}
		}
		return spec
	}
	_, err := l.run(lifecyclev1alpha1.ActionAddNode, with("h-2", "h-3"), hosts("h-2", "h-3"))
	says(t, err, "etcd has no quorum") // the etcd of a simulated host cannot be asked
	op, err := l.run(lifecyclev1alpha1.ActionAddNode, with("h-4", "h-5"), hosts("h-4", "h-5"))
	l.wantRefused(op, err, "host h-2 a member of the etcd", "take it out first")
	if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, namesOf(l.state().Known())); d != "" {
		t.Errorf("hosts that are known (-want +got):\n%s", d)
	}
}
