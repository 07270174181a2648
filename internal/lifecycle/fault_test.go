package lifecycle_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
)

// like returns a lab of the same size and with the same keys, so that the files on the hosts can be
// compared.
func (l *lab) like(t *testing.T, n, controlPlanes int) *lab {
	t.Helper()
	other := newLab(t, n, controlPlanes)
	other.spec.Source, other.spec.Network.Plugin = l.spec.Source, l.spec.Network.Plugin
	state, err := l.store.Load(t.Context(), "oak")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.store.Save(t.Context(), &lifecycle.State{
		Cluster: "oak", ID: state.ID, Authorities: state.Authorities, Keys: state.Keys, Digests: map[string]string{}, EtcdBootstrap: map[string]plan.EtcdBootstrap{},
	}); err != nil {
		t.Fatal(err)
	}
	return other
}

// nth fails the nth call of hits.
type nth struct {
	n int

	mu    sync.Mutex
	calls int
}

func (f *nth) hits() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return f.calls == f.n
}

// count returns the number of calls.
func (f *nth) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// TestFailAtEveryCommand breaks each command of a create, before and after it runs, and resumes.
// Without SOAK it breaks a third of them.
func TestFailAtEveryCommand(t *testing.T) {
	undisturbed := newLab(t, 2, 1)
	// This test does not cover waits for objects of the cluster.
	undisturbed.spec.Network.Plugin = plan.NetworkNone
	all := &nth{}
	undisturbed.fleet.Fault = func(string, string) error { all.hits(); return nil }
	if _, err := undisturbed.run(lifecyclev1alpha1.ActionCreate, undisturbed.spec); err != nil {
		t.Fatal(err)
	}
	want := undisturbed.trees()
	type failure struct {
		after   bool
		command int
	}
	var failures []failure
	for n := range all.count() {
		failures = append(failures, failure{false, n + 1}, failure{true, n + 1})
	}
	for _, f := range testenv.Sample(t, 6, failures) {
		t.Run(fmt.Sprintf("After=%t/Command=%d", f.after, f.command), func(t *testing.T) {
			l := undisturbed.like(t, 2, 1)
			at := &nth{n: f.command}
			fail := func(name, command string) error {
				if !at.hits() {
					return nil
				}
				return &host.Unreachable{Host: name, Address: "127.0.0.1:22", Err: errors.New("cut at " + command)}
			}
			if f.after {
				l.fleet.Broken = fail
			} else {
				l.fleet.Fault = fail
			}
			op, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
			l.fleet.Fault, l.fleet.Broken = nil, nil
			if err != nil {
				kept := l.kept(op.Name)
				if kept.Status.Phase != lifecyclev1alpha1.PhaseFailed || !strings.Contains(kept.Status.Message, "h-") {
					t.Errorf("record: %s %q", kept.Status.Phase, kept.Status.Message)
				}
				if err := l.resume(op.Name); err != nil {
					t.Fatal(err)
				}
			}
			if phase := l.kept(op.Name).Status.Phase; phase != lifecyclev1alpha1.PhaseSucceeded {
				t.Errorf("phase %s", phase)
			}
			if d := cmp.Diff(want, l.trees()); d != "" {
				t.Errorf("after the resumed run hosts differ from those of an undisturbed run: %s", d)
			}
		})
	}
}

// TestAgentFails interrupts the agent at twelve points of a create and a delete, and resumes.
// Without SOAK it uses a third of the points.
func TestAgentFails(t *testing.T) {
	undisturbed := newLab(t, 1, 1)
	undisturbed.spec.Network.Plugin = plan.NetworkNone
	all := map[lifecyclev1alpha1.Action]*nth{lifecyclev1alpha1.ActionCreate: {}, lifecyclev1alpha1.ActionDelete: {}}
	want := map[lifecyclev1alpha1.Action]map[string]map[string]string{}
	actions := []lifecyclev1alpha1.Action{lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionDelete}
	undisturbed.install("h-1")
	for _, action := range actions {
		undisturbed.fleet.NodeFault = func(string, string) error { all[action].hits(); return nil }
		undisturbed.must(action, undisturbed.spec)
		want[action] = undisturbed.trees()
	}
	l := newLab(t, 1, 1)
	l.spec.Source, l.spec.Network.Plugin = undisturbed.spec.Source, plan.NetworkNone
	l.install("h-1")
	samples := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for _, i := range testenv.Sample(t, 6, samples) {
		for _, action := range actions {
			n := 1 + i*all[action].count()/len(samples)
			at := &nth{n: n}
			l.fleet.NodeFault = func(_, point string) error {
				if at.hits() {
					return errors.New("broken off at " + point)
				}
				return nil
			}
			op, err := l.run(action, l.spec)
			if err == nil {
				t.Fatalf("%s: no one noticed that point %d failed", action, n)
			}
			says(t, err, "host h-1", "broken off at")
			if err := l.resume(op.Name); err != nil {
				t.Fatalf("%s: resumed after point %d: %v", action, n, err)
			}
			if d := cmp.Diff(paths(want[action]["h-1"]), paths(l.tree("h-1"))); d != "" {
				t.Errorf("%s: after point %d and a resumed run the host differs from an undisturbed one: %s", action, n, d)
			}
		}
	}
}

// install creates directories that every Linux has.
func (l *lab) install(name string) {
	l.t.Helper()
	if err := os.MkdirAll(filepath.Join(l.fleet.Root(name), "var", "lib"), 0o755); err != nil {
		l.t.Fatal(err)
	}
}
