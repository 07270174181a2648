package demo

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"orrery.dev/orrery/internal/disk"
)

// TestRunning: a demonstration is found by its lock, also in the moment before it has written its
// process ID. The search for the ID ends with the context.
func TestRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		running := func(want int) {
			t.Helper()
			if pid, err := Running(t.Context(), dir); pid != want || err != nil {
				t.Fatalf("process %d, %v; want %d", pid, err, want)
			}
		}
		running(0)
		held, err := disk.TryLock(lockFile(dir))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(pidInterval/2, func() { _, _ = held.WriteString("12") })
		time.AfterFunc(3*pidInterval/2, func() { _, _ = held.WriteString("34\n") })
		running(1234)
		if err := held.Truncate(0); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(pidInterval/2, func() { disk.Unlock(held) })
		running(0)

		unlock, err := lock(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		running(os.Getpid())
		if _, err := lock(t.Context(), dir); !errors.Is(err, ErrRunning) {
			t.Fatalf("a second lock: %v", err)
		}
		unlock()
		running(0)
		if left, err := os.ReadFile(lockFile(dir)); len(left) > 0 || err != nil {
			t.Fatalf("the lock file still has %q, %v", left, err)
		}
		if held, err = disk.TryLock(lockFile(dir)); err != nil {
			t.Fatal(err)
		}
		defer disk.Unlock(held)
		if err := held.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := Running(t.Context(), dir); err == nil {
			t.Fatal("no error without a process ID")
		}

		ctx, cancel := context.WithTimeout(t.Context(), 5*pidInterval/2)
		defer cancel()
		began := time.Now()
		if _, err := Running(ctx, dir); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*pidInterval/2 {
			t.Fatalf("%v after %v, want the end of the context", err, time.Since(began))
		}
	})
}
