package testenv

import (
	"testing"
	"time"
)

// Patience is the longest time for something that usually takes a moment, on a busy machine.
const Patience = 3 * time.Minute

// pollInterval is short compared with all events that tests wait for.
const pollInterval = 20 * time.Millisecond

// Eventually waits until check returns no error. After the deadline, it fails the test with the
// last error of check. Time in which the machine did not run this process does not count.
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

// pollWith extends the deadline by the time that each sleep is too long. On a busy or paused
// machine, the awaited event is late as well.
func pollWith(sleep func(time.Duration), deadline time.Duration, check func() error) error {
	for end := time.Now().Add(deadline); ; {
		began := time.Now()
		err := check()
		// The last check must begin after the deadline, so that a check that stalls beyond it
		// is repeated.
		if err == nil || began.After(end) {
			return err
		}
		asked := time.Now()
		sleep(pollInterval)
		end = end.Add(max(0, time.Since(asked)-pollInterval))
	}
}

// After tests that something does not happen. It waits until sentinel returns no error, and
// fails the test if check then returns an error. The test triggers the sentinel after the
// action that must have no effect. The tested program must process both in order, in one queue
// or in one pass over everything. So the wait is as short as the machine allows, and no fixed
// time has to be long enough.
func After(t testing.TB, what string, sentinel, check func() error) {
	t.Helper()
	Eventually(t, what+": wait for the sentinel", Patience, sentinel)
	if err := check(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Never fails the test if check returns an error within the time. It tests that something does
// not happen where After has no sentinel.
func Never(t testing.TB, what string, within time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(pollInterval) {
		if err := check(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
