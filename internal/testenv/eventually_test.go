package testenv

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPollReturnsTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		err := poll(50*time.Millisecond, func() error { n++; return errors.New(strings.Repeat("x", n)) })
		if n < 2 || err == nil || len(err.Error()) != n {
			t.Errorf("after %d checks: %v", n, err)
		}
		if err := poll(0, func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// TestPollDoesNotCountStalls: time in which the machine stands still does not shorten a wait.
func TestPollDoesNotCountStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deadline = 100 * pollInterval
		checks, began := 0, time.Now()
		stall := func(interval time.Duration) {
			if checks == 50 {
				interval += time.Hour
			}
			time.Sleep(interval)
		}
		err := pollWith(stall, deadline, func() error { checks++; return errors.New("not yet") })
		if took := time.Since(began) - time.Hour; err == nil || checks < 100 || took < deadline || took > deadline+2*pollInterval {
			t.Errorf("%d checks within %s beside the stall: %v", checks, took, err)
		}
	})
}

func TestAfter(t *testing.T) {
	for name, tc := range map[string]struct {
		happened error
		want     string
	}{
		"Nothing":   {},
		"Something": {errors.New("it has gone"), "failed: it stays: it has gone"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			got := verdictOf(t, func(t testing.TB) {
				After(t, "it stays", func() error {
					if asked++; asked < 3 {
						return errors.New("not yet")
					}
					return nil
				}, func() error { return tc.happened })
			})
			if got != tc.want || asked != 3 {
				t.Errorf("%q after %d questions, want %q after 3", got, asked, tc.want)
			}
		})
	}
}
