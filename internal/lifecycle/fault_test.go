package lifecycle_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// like returns a lab of the same size whose cluster has the same keys, so that what is on its hosts can be compared.
func (l *lab) like(t *testing.T, n, controlPlanes int) *lab {
	t.Helper()
	other := newLab(t, n, controlPlanes)
	other.spec.Source, other.spec.Network.Plugin = l.spec.Source, l.spec.Network.Plugin
	state, err := l.store.Load(t.Context(), "oak")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.store.Save(t.Context(), &lifecycle.State{
		Cluster: "oak", Keys: state.Keys, Digests: map[string]string{}, EtcdBootstrap: map[string]plan.EtcdBootstrap{},
	}); err != nil {
		t.Fatal(err)
	}
	return other
}

// nth fails the n-th of the calls that it is told of.
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

// count is how many calls there were.
func (f *nth) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// TestFailAtEveryCommand breaks each command of a create, before it runs and after it ran, and resumes.
func TestFailAtEveryCommand(t *testing.T) {
	undisturbed := newLab(t, 2, 1)
	undisturbed.spec.Network.Plugin = plan.NetworkNone // what is waited for in the cluster is not what fails here
	all := &nth{}
	undisturbed.fleet.Fault = func(string, string) error { all.hits(); return nil }
	if _, err := undisturbed.run(lifecyclev1alpha1.ActionCreate, undisturbed.spec); err != nil {
		t.Fatal(err)
	}
	want := undisturbed.trees()
	for _, after := range []bool{false, true} {
		for n := range all.count() {
			t.Run(fmt.Sprintf("After=%t/Command=%d", after, n+1), func(t *testing.T) {
				l := undisturbed.like(t, 2, 1)
				at := &nth{n: n + 1}
				fail := func(name, command string) error {
					if !at.hits() {
						return nil
					}
					return &host.Unreachable{Host: name, Address: "127.0.0.1:22", Err: errors.New("cut at " + command)}
				}
				if after {
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
}

// TestAgentFailsAllTheWay breaks the agent off all the way through a create and a delete, at points of every kind. After
// each the run is resumed, until it is through.
func TestAgentFailsAllTheWay(t *testing.T) {
	undisturbed := newLab(t, 1, 1)
	undisturbed.spec.Network.Plugin = plan.NetworkNone
	if _, err := undisturbed.run(lifecyclev1alpha1.ActionCreate, undisturbed.spec); err != nil {
		t.Fatal(err)
	}
	l := undisturbed.like(t, 1, 1)
	reached := map[string]bool{}
	for _, action := range []lifecyclev1alpha1.Action{lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionDelete} {
		const most = 5000
		failures := 0
		start := time.Now()
		// Attempts end after few points, a different number each time. If one left the host's memory as it was, the next
		// goes further.
		const stride = 11
		at, memory := &nth{n: 1}, ""
		l.fleet.NodeFault = func(_, point string) error {
			if !at.hits() {
				return nil
			}
			reached[point] = true
			return errors.New("broken off at " + point)
		}
		op, err := l.run(action, l.spec)
		for ; err != nil; err = l.resume(op.Name) {
			if !strings.Contains(err.Error(), "host h-1") || !strings.Contains(err.Error(), "broken off at") {
				t.Fatal(err)
			}
			if failures++; failures == most {
				t.Fatalf("%s is not through after %d attempts", action, most)
			}
			fmt.Println(action, failures, at.n, time.Since(start).Round(time.Millisecond), strings.Count(l.memory("h-1"), "\n"), err)
			next := 1 + failures%stride
			if m := l.memory("h-1"); m == memory {
				next = at.n + 1
			} else {
				memory = m
			}
			at = &nth{n: next}
		}
		kept := l.kept(op.Name)
		if kept.Status.Phase != lifecyclev1alpha1.PhaseSucceeded || int(kept.Status.Attempt) != failures+1 {
			t.Errorf("%s: phase %s, attempt %d after %d failures", action, kept.Status.Phase, kept.Status.Attempt, failures)
		}
		want := undisturbed.trees()
		if action == lifecyclev1alpha1.ActionDelete {
			want = map[string]map[string]string{"h-1": {"": want["h-1"][""], "/opt": want["h-1"]["/opt"]}}
		}
		if d := cmp.Diff(want, l.trees()); d != "" {
			t.Errorf("after %s the host differs from an undisturbed one: %s", action, d)
		}
		t.Logf("%s: %d failures", action, failures)
	}
	for _, point := range []string{"step/begun", "step/done", "step/reverted", "step/forgotten", "leave/removed", "file/before-rename", "unit/installed"} {
		if !reached[point] {
			t.Errorf("no attempt ended at %s", point)
		}
	}
}

// memory is what the agent of a host remembers of its steps.
func (l *lab) memory(name string) string {
	l.t.Helper()
	applied, err := node.Rooted(l.fleet.Root(name)).Observe(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range applied.Steps {
		fmt.Fprintln(&b, s.ID, s.Complete)
	}
	return b.String()
}
