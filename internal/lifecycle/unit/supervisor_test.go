package unit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ctxOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// supervised returns a host without systemd. What is left of it is killed after the test.
func supervised(t *testing.T, root string) *host {
	t.Helper()
	l := newLayout(root)
	t.Cleanup(func() {
		if pid := supervisorPID(t, root); pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGTERM)
			eventually(t, "the supervisor has ended", func() bool { return !runs(pid) })
		}
		if t.Failed() {
			log, _ := os.ReadFile(l.log())
			t.Logf("log of the supervisor:\n%s", log)
		}
	})
	return &host{
		Manager:    NewSupervisor(root, self(t), play, roleSupervise, root),
		self:       self(t),
		definition: l.definition,
		runs:       runs,
		kill: func(t *testing.T, pid int, sig syscall.Signal) {
			t.Helper()
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// supervisorPID finds the supervisor of the root; 0 is none.
func supervisorPID(t *testing.T, root string) int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		cmdline, _ := os.ReadFile(path) // it may have ended
		if strings.HasSuffix(string(cmdline), "\x00"+play+"\x00"+roleSupervise+"\x00"+root+"\x00") {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil && runs(pid) {
				return pid
			}
		}
	}
	return 0
}

func TestSupervisorConforms(t *testing.T) {
	t.Parallel()
	conform(t, supervised(t, t.TempDir()))
}

// No unit, no supervisor, and no file of it; on the way there it is started again and again.
func TestSupervisorEndsWithItsLastUnit(t *testing.T) {
	t.Parallel()
	// A socket's address could not have a path of this length.
	root := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	h := supervised(t, root)
	for range 3 {
		for _, name := range []string{"a", "b"} {
			if err := h.Install(t.Context(), h.unit(name, rolePolite)); err != nil {
				t.Fatal(err)
			}
			h.restart(t, name)
		}
		for _, name := range []string{"a", "b"} {
			if supervisorPID(t, root) == 0 {
				t.Error("there is no supervisor while there is a unit")
			}
			if err := h.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "the supervisor has ended", func() bool { return supervisorPID(t, root) == 0 })
	if diff := cmp.Diff([]string(nil), files(t, root)); diff != "" {
		t.Errorf("files after the last unit (-want +got):\n%s", diff)
	}
}

// It must not end with the session that started it.
func TestSupervisorIsDetached(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := supervised(t, root)
	h.run(t, h.unit("a", rolePolite))
	pid := supervisorPID(t, root)
	if session, _, _ := syscall.RawSyscall(syscall.SYS_GETSID, uintptr(pid), 0, 0); int(session) != pid {
		t.Errorf("session of the supervisor: got %d, want its own, %d", session, pid)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if strings.HasPrefix(target, "pipe:") {
			t.Errorf("file descriptor %s of the supervisor is %s", fd.Name(), target)
		}
	}
	info, err := os.Stat(filepath.Join(root, "run/orrery/supervisor.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: got %v, want 0600", info.Mode().Perm())
	}
}

func TestSupervisorIsKilled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := supervised(t, root)
	before := map[string]Status{"a": h.run(t, h.unit("a", rolePolite)), "b": h.run(t, h.unit("b", rolePolite))}
	parent := h.unit("c", roleParent)
	parent.KillMode = "process"
	before["c"] = h.run(t, parent)
	child := h.child(t, "c", 1)
	t.Cleanup(func() { h.kill(t, child, syscall.SIGKILL) })

	killSupervisor(t, root)
	for name, s := range before {
		eventually(t, name+" has ended with the supervisor", func() bool { return !runs(s.PID) })
		// To look at it does not bring it back: so it is after a reboot.
		if s := h.status(t, name); !s.Installed || s.DefinitionHash == "" || s.Running || s.Detail == "" {
			t.Errorf("%s after the supervisor was killed: got %+v", name, s)
		}
	}
	if !runs(child) {
		t.Error("what a unit started did not survive, though its kill mode says so")
	}
	if supervisorPID(t, root) != 0 {
		t.Error("Observe has started a supervisor")
	}
	h.restart(t, "a")
	for name, s := range before {
		eventually(t, name+" runs again", func() bool {
			now := h.status(t, name)
			return now.Running && now.PID != s.PID
		})
	}
	h.kill(t, h.child(t, "c", 2), syscall.SIGKILL)
}

func killSupervisor(t *testing.T, root string) {
	t.Helper()
	pid := supervisorPID(t, root)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill supervisor %d: %v", pid, err)
	}
	eventually(t, "the supervisor has ended", func() bool { return !runs(pid) })
}

// Removal needs no supervisor, and starts none that would start the others.
func TestRemoveWithoutSupervisor(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := supervised(t, root)
	for _, name := range []string{"a", "b"} {
		if err := h.Install(t.Context(), h.unit(name, rolePolite)); err != nil {
			t.Fatal(err)
		}
		h.restart(t, name)
	}
	killSupervisor(t, root)
	for _, name := range []string{"a", "b"} {
		if err := h.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if supervisorPID(t, root) != 0 {
			t.Error("a supervisor was started")
		}
	}
	if diff := cmp.Diff([]string(nil), files(t, root)); diff != "" {
		t.Errorf("files after the last unit (-want +got):\n%s", diff)
	}
}

// A supervisor that is told to end does so in order, and the definitions stay.
func TestSupervisorIsStopped(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := supervised(t, root)
	a := h.unit("a", rolePolite)
	a.After = []string{"b"}
	before := []Status{h.run(t, a), h.run(t, h.unit("b", rolePolite))}
	pid := supervisorPID(t, root)
	h.kill(t, pid, syscall.SIGTERM)
	eventually(t, "the supervisor has ended", func() bool { return !runs(pid) })
	for _, s := range before {
		if runs(s.PID) {
			t.Errorf("PID %d still runs", s.PID)
		}
	}
	log, err := os.ReadFile(newLayout(root).log())
	if err != nil {
		t.Fatal(err)
	}
	first, second := strings.Index(string(log), `"Stopped" "plan"="a"`), strings.Index(string(log), `"Stopped" "plan"="b"`)
	if first < 0 || second < first {
		t.Errorf("a, which comes after b, was not stopped first: %s", log)
	}
	h.restart(t, "b")
	eventually(t, "a runs again", func() bool { return h.status(t, "a").Running })
}

// Agents that come at once get one supervisor.
func TestSupervisorStartedByMany(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := supervised(t, root)
	names := []string{"a", "b", "c", "d", "e", "f"}
	for _, name := range names {
		h.install(t, h.unit(name, rolePolite))
	}
	var group sync.WaitGroup
	for _, name := range names {
		group.Go(func() {
			if err := h.Restart(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	all, err := h.Observe(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range all {
		if !s.Running {
			t.Errorf("%s: got %+v, want it to run", name, s)
		}
	}
}

func TestSupervisorCannotStart(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := supervised(t, root)
	u := h.unit("a", rolePolite)
	for name, command := range map[string][]string{
		"NoProgram": {"/no/such/program"},
		"Fails":     {"/bin/sh", "-c", "echo the reason >&2; exit 7"},
	} {
		m := NewSupervisor(root, command...)
		if err := m.Install(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		err := m.Restart(t.Context(), "a")
		if err == nil {
			t.Fatalf("%s: Restart got no error", name)
		}
		for _, want := range map[string][]string{"NoProgram": {"/no/such/program"}, "Fails": {"exit status 7", "the reason"}}[name] {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want %q in it", name, err, want)
			}
		}
	}
}
