package testenv

import (
	"testing"
	"time"
)

// Patience is how long something may take that should take a moment, on a busy machine.
const Patience = 3 * time.Minute

// pollInterval is short beside everything that is waited for.
const pollInterval = 20 * time.Millisecond

// Eventually waits until the check returns no error, and fails the test with its last error when it
// still does after the deadline. Time in which the machine did not run this process does not count.
func Eventually(t testing.TB, what string, deadline time.Duration, check func() error) {
	t.Helper()
	if err := poll(deadline, check); err != nil {
		t.Fatalf("%s: after %s: %v", what, deadline, err)
	}
}

// poll repeats a check until it returns no error or the deadline has passed.
func poll(deadline time.Duration, check func() error) error {
	return pollWith(time.Sleep, deadline, check)
}

// pollWith puts the deadline off by what each sleep takes longer than it should: on a busy or
// paused machine what is waited for is late, too.
func pollWith(sleep func(time.Duration), deadline time.Duration, check func() error) error {
	for end := time.Now().Add(deadline); ; {
		err := check()
		asked := time.Now()
		if err == nil || asked.After(end) {
			return err
		}
		sleep(pollInterval)
		end = end.Add(max(0, time.Since(asked)-pollInterval))
	}
}

// After is for what must not happen. It waits until a sentinel has had its effect, and fails the
// test if the check returns an error then. The test writes the sentinel after what must have no
// effect, where the program under test handles the two in their order: in one queue, or by one
// reading of everything. The wait is as short as the machine allows, and no fixed time has to be
// long enough.
func After(t testing.TB, what string, sentinel, check func() error) {
	t.Helper()
	Eventually(t, what+": wait for the sentinel", Patience, sentinel)
	if err := check(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Never fails the test when the check returns an error before the time is over: for what
// must not happen, where After has no sentinel to wait for.
func Never(t testing.TB, what string, within time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(pollInterval) {
		if err := check(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
