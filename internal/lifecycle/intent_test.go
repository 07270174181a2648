package lifecycle_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

// without returns the lab's spec without its last worker, and that worker's name.
func (l *lab) without() (rest *clusterv1alpha1.Provision, gone string) {
	rest = l.spec.DeepCopy()
	last := len(rest.Hosts) - 1
	gone = rest.Hosts[last].Name
	rest.Hosts = rest.Hosts[:last]
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = nil
	for _, h := range rest.Hosts[1:] {
		rest.RoleGroups[clusterv1alpha1.RoleWorker] = append(rest.RoleGroups[clusterv1alpha1.RoleWorker], h.Name)
	}
	return rest, gone
}

// hosts sets the hosts of an Operation that adds or deletes nodes.
func hosts(names ...string) func(*lifecyclev1alpha1.OperationSpec) {
	return func(s *lifecyclev1alpha1.OperationSpec) {
		switch s.Action {
		case lifecyclev1alpha1.ActionAddNode:
			s.AddNode = &lifecyclev1alpha1.AddNodeAction{Hosts: names}
		case lifecyclev1alpha1.ActionDeleteNode:
			s.DeleteNode = &lifecyclev1alpha1.DeleteNodeAction{Hosts: names}
		case lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionDelete, lifecyclev1alpha1.ActionRenewCertificates:
		}
	}
}

// forget lets an Operation forget unreachable hosts.
func forget(s *lifecyclev1alpha1.OperationSpec) {
	s.SetMember(s.NamedHosts(), lifecyclev1alpha1.UnreachableForget, s.Order())
}

// ordered sets the rollout settings of an Operation.
func ordered(order lifecyclev1alpha1.Rollout) func(*lifecyclev1alpha1.OperationSpec) {
	return func(s *lifecyclev1alpha1.OperationSpec) { s.SetMember(s.NamedHosts(), "", order) }
}

// state loads the state of the cluster.
func (l *lab) state() *lifecycle.State {
	l.t.Helper()
	state, err := l.store.Load(l.t.Context(), "oak")
	if err != nil {
		l.t.Fatal(err)
	}
	return state
}

func namesOf(hosts []clusterv1alpha1.Host) []string {
	names := []string{}
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

// beginAgain resets a record to that of a run that was killed at its start.
func (l *lab) beginAgain(op *lifecyclev1alpha1.Operation, hash string) {
	l.t.Helper()
	op.Status = lifecyclev1alpha1.OperationStatus{Attempt: 1, Phase: lifecyclev1alpha1.PhaseRunning, SpecHash: hash}
	if err := l.store.Record(l.t.Context(), op); err != nil {
		l.t.Fatal(err)
	}
}

// TestResumeDeleteNode: a resumed delete-node removes a host that did not answer before. Nothing of
// the run before it is done again.
func TestResumeDeleteNode(t *testing.T) {
	l := built(t, 3, 1)
	rest, gone := l.without()
	l.unreachable(gone)
	op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, rest, hosts(gone))
	says(t, err, gone, "unreachable")
	l.unreachable()
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"h-1", "h-2"}, namesOf(l.state().Applied.Hosts)); d != "" {
		t.Errorf("hosts of the cluster (-want +got):\n%s", d)
	}
	if tree := l.tree(gone); len(tree) != 2 {
		t.Errorf("host %s has %v", gone, paths(tree))
	}
	if _, changes, err := l.engine.Plan(t.Context(), rest); err != nil || len(changes.Items) != 0 {
		t.Errorf("there is still something to do: %v %v", changes, err)
	}
}

// TestResumeTakesItsOwnSpec: a resumed run uses the spec that it was started with, or fails.
func TestResumeTakesItsOwnSpec(t *testing.T) {
	for name, tc := range map[string]struct {
		keep  func(l *lab, state *lifecycle.State, op string)
		given func(l *lab) *clusterv1alpha1.Provision
		pods  string // setting on the hosts; empty if the run is refused
	}{
		"Kept": {keep: func(*lab, *lifecycle.State, string) {}, pods: "maxPods: 61"},
		"OfAnotherRun": {
			keep: func(_ *lab, s *lifecycle.State, _ string) { s.WantedBy = "oak-1" },
		},
		"OfARunThatHadTheName": {
			keep: func(l *lab, s *lifecycle.State, op string) { s.Wanted, s.WantedBy = l.maxPods(62), op },
		},
		"GivenAgain": {
			keep:  func(_ *lab, s *lifecycle.State, _ string) { s.WantedBy = "oak-1" },
			given: func(l *lab) *clusterv1alpha1.Provision { return l.maxPods(61) }, pods: "maxPods: 61",
		},
		"AnotherIsGiven": {
			keep:  func(_ *lab, s *lifecycle.State, _ string) { s.WantedBy = "oak-1" },
			given: func(l *lab) *clusterv1alpha1.Provision { return l.maxPods(62) },
		},
		"AnotherIsGivenAndItsOwnKept": {
			keep:  func(*lab, *lifecycle.State, string) {},
			given: func(l *lab) *clusterv1alpha1.Provision { return l.maxPods(62) }, pods: "maxPods: 61",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := built(t, 1, 1)
			l.unreachable("h-1")
			op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(61))
			says(t, err, "no API server of cluster oak answers")
			l.unreachable()
			hash := l.kept(op.Name).Status.SpecHash
			if hash == "" {
				t.Error("the record has no hash of the spec")
			}
			l.beginAgain(op, hash)
			state := l.state()
			tc.keep(l, state, op.Name)
			if err := l.store.Save(t.Context(), state); err != nil {
				t.Fatal(err)
			}
			before := l.trees()
			l.fleet.Forget()
			var given *clusterv1alpha1.Provision
			if tc.given != nil {
				given = tc.given(l)
			}
			err = l.engine.Run(t.Context(), l.kept(op.Name), given)
			if tc.pods == "" {
				says(t, err, op.Name, "nothing is done", "start a new one")
				l.untouched(before, "h-1")
				if commands := l.fleet.Commands("h-1"); len(commands) > 0 {
					t.Errorf("the host was asked: %v", commands)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(l.tree("h-1")["/etc/kubernetes/kubelet.yaml"], tc.pods) {
				t.Errorf("the host does not have %s", tc.pods)
			}
		})
	}
}

// TestSpecHashHasNoSecrets: logins of hosts cannot be guessed from the hash in a record.
func TestSpecHashHasNoSecrets(t *testing.T) {
	l := built(t, 1, 1)
	spec := l.spec.DeepCopy()
	spec.Hosts[0].Password, spec.Hosts[0].SudoPassword, spec.Hosts[0].PrivateKey = "a", "b", "c"
	first := l.must(lifecyclev1alpha1.ActionApply, l.spec).Status.SpecHash
	if second := l.must(lifecyclev1alpha1.ActionApply, spec).Status.SpecHash; second != first {
		t.Errorf("hash %s with passwords, %s without", second, first)
	}
	if third := l.must(lifecyclev1alpha1.ActionApply, l.maxPods(61)).Status.SpecHash; third == first {
		t.Errorf("another spec has the hash %s too", third)
	}
}
