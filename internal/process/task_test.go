package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

// TestDiscard: a process that was started and cannot be recorded is stopped before it is started
// again. If it still runs after SIGKILL, the plan ends with that error, and the process is not
// started twice.
func TestDiscard(t *testing.T) {
	full := errors.New("no space left on device")
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Plan{Name: "plan", Processes: []Process{{Name: "a", Command: []string{"sleep", "600"}}}}, Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		// A signal has no effect on a process that counts as reaped, and done is never closed.
		hung := &child{pid: 1, done: make(chan struct{}), reaped: true}
		exit, err := s.tasks[0].discard(hung, full)
		if exit != nil || !errors.Is(err, full) || !strings.Contains(err.Error(), "still runs") {
			t.Errorf("a process that hangs: exit %v, error %v, want only the error that it still runs", exit, err)
		}
		ended := &child{pid: 1, done: make(chan struct{}), reaped: true}
		close(ended.done)
		if exit, err := s.tasks[0].discard(ended, full); !errors.Is(exit, full) || err != nil {
			t.Errorf("a process that ended: exit %v, error %v, want only the exit", exit, err)
		}
	})
}

// TestSpawnWithoutPidfile: a process whose pidfile cannot be written does not run.
func TestSpawnWithoutPidfile(t *testing.T) {
	dir := t.TempDir()
	said := dir + "/said"
	s, err := New(Plan{Name: "plan", Processes: []Process{{Name: "a", Command: []string{"sh", "-c", "echo $$ >" + said + "; exec sleep 600"}}}}, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s.thread = newThread()
	defer s.thread.close()
	if err := os.MkdirAll(s.tasks[0].pidPath()+"/in", 0o700); err != nil {
		t.Fatal(err)
	}
	if c, exit, err := s.tasks[0].spawn(); c != nil || exit == nil || err != nil {
		t.Errorf("process %v, exit %v, error %v, want only the exit", c, exit, err)
	}
	content, err := os.ReadFile(said)
	if err != nil {
		return // it was killed before it could write its PID
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
		if _, err := identity(pid); err == nil {
			t.Errorf("PID %d runs", pid)
		}
	}
}
