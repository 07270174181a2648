package lifecycle_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestSlowHost: a host that gets its content slowly does not delay the others.
func TestSlowHost(t *testing.T) {
	l := newLab(t, 6, 1)
	var once sync.Once
	last := make(chan struct{})
	// One of the first two hosts, which the control machine serves, continues when the last host is
	// served.
	l.fleet.Fault = func(name, command string) error {
		switch {
		case name == "h-6" && command == "agent":
			once.Do(func() { close(last) })
		case name == "h-2" && command == "agent":
			select {
			case <-last:
			case <-time.After(patience):
				t.Error("the last host waits for the slow one")
			}
		}
		return nil
	}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	for digest, n := range l.fleet.Sent() {
		if n > 2 {
			t.Errorf("%s left the control machine %d times", digest, n)
		}
	}
}

// TestSourceThatCannotServe: a host that cannot start its file server sends no files to others, and
// stops nothing. The control machine sends them, or another host.
func TestSourceThatCannotServe(t *testing.T) {
	l := newLab(t, 4, 1)
	l.spec.Network.Plugin = plan.NetworkNone
	l.fleet.Fault = func(name, command string) error {
		if command == "serve" && name != "h-3" {
			return errors.New("address already in use")
		}
		return nil
	}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
}
