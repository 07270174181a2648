package testenv

import (
	"testing"
	"time"
)

// Patience is how long tests wait for something that usually takes a moment, since the machine may
// be busy.
const Patience = 3 * time.Minute

// pollInterval is the interval between two checks of poll and Never. It is short compared with all
// that tests wait for.
const pollInterval = 20 * time.Millisecond

// Eventually repeats check until it returns no error. When deadline has passed, it fails the test
// with the last error of check. what says in the message what is checked. Time in which the machine
// did not run this process does not count.
func Eventually(t testing.TB, what string, deadline time.Duration, check func() error) {
	t.Helper()
	if err := poll(deadline, check); err != nil {
		t.Fatalf("%s: after %s: %v", what, deadline, err)
	}
}

// poll repeats check until it returns no error, or deadline has passed. It then returns the last
// error of check.
func poll(deadline time.Duration, check func() error) error {
	return pollWith(time.Sleep, deadline, check)
}

// pollWith does the work of poll with another sleep function. It extends the deadline by the time
// that each sleep is too long. On a busy or paused machine, the awaited event is late as well.
func pollWith(sleep func(time.Duration), deadline time.Duration, check func() error) error {
	for end := time.Now().Add(deadline); ; {
		began := time.Now()
		err := check()
		// Only a check that began after the deadline is the last one. A check that stalls beyond the
		// deadline is therefore repeated.
		if err == nil || began.After(end) {
			return err
		}
		asked := time.Now()
		sleep(pollInterval)
		end = end.Add(max(0, time.Since(asked)-pollInterval))
	}
}

// After tests that an action does not have an effect. check returns an error if the effect is
// there. The test triggers a second, visible effect after the action, and sentinel returns nil once
// that is there. After waits for sentinel and then calls check once.
//
// The tested program must process both in order, in one queue or in one pass over everything. So
// the wait is as short as the machine allows, and no fixed time has to be long enough.
func After(t testing.TB, what string, sentinel, check func() error) {
	t.Helper()
	Eventually(t, what+": wait for the sentinel", Patience, sentinel)
	if err := check(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Never fails the test if check returns an error within the time. It tests that something does not
// happen. It is for cases in which nothing visible happens later, on which After could wait.
func Never(t testing.TB, what string, within time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(pollInterval) {
		if err := check(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
