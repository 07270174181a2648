package testenv

import (
	"testing"
	"time"
)

// Patience is how long something may take that should take a moment, on a busy machine.
const Patience = time.Minute

// pollInterval is short beside everything that is waited for.
const pollInterval = 20 * time.Millisecond

// Eventually waits until the check returns no error, and fails the test with its last error
// when it still does after the deadline.
func Eventually(t testing.TB, what string, deadline time.Duration, check func() error) {
	t.Helper()
	if err := poll(deadline, check); err != nil {
		t.Fatalf("%s: after %s: %v", what, deadline, err)
	}
}

// poll repeats a check until it returns no error or the deadline has passed.
func poll(deadline time.Duration, check func() error) error {
	for end := time.Now().Add(deadline); ; time.Sleep(pollInterval) {
		if err := check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// Never fails the test when the check returns an error before the time is over: for what
// must not happen, where there is nothing to wait for.
func Never(t testing.TB, what string, within time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(pollInterval) {
		if err := check(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
