package unit

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/lab"
)

// bootable makes a root with an init system that starts what is in the directories.
func bootable(t *testing.T, dirs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestBootServiceFiles(t *testing.T) {
	t.Parallel()
	const script = "init.d/orrery"
	for name, test := range map[string]struct {
		dirs, want []string
	}{
		"Sysvinit":   {[]string{"etc/init.d", "etc/rc2.d", "etc/rc3.d", "etc/rc5.d"}, []string{script, "rc2.d/S99orrery", "rc3.d/S99orrery", "rc5.d/S99orrery"}},
		"OneLevel":   {[]string{"etc/init.d", "etc/rc2.d"}, []string{script, "rc2.d/S99orrery"}},
		"OtherLevel": {[]string{"etc/init.d", "etc/rc3.d"}, nil},
		"NoScripts":  {[]string{"etc/rc2.d"}, nil},
		"None":       {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := bootable(t, test.dirs...)
			h := supervised(t, root)
			for _, name := range []string{"a", "b"} {
				if err := h.Install(t.Context(), h.unit(name, rolePolite)); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(test.want, files(t, filepath.Join(root, "etc"))); diff != "" {
				t.Errorf("files with two units (-want +got):\n%s", diff)
			}
			for n, unit := range []string{"a", "b"} {
				if s := h.status(t, unit); s.DefinitionHash == "" {
					t.Errorf("%s: got %+v, want a hash", unit, s)
				}
				if err := h.Remove(t.Context(), unit); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(filepath.Join(root, "etc", script)); n == 0 && test.want != nil && err != nil {
					t.Errorf("with a unit left: %v", err)
				}
			}
			if diff := cmp.Diff([]string(nil), files(t, root)); diff != "" {
				t.Errorf("files after the last unit (-want +got):\n%s", diff)
			}
		})
	}
}

// What somebody did to the service is undone by installing a unit again.
func TestBootServiceDamaged(t *testing.T) {
	t.Parallel()
	root := bootable(t, "etc/init.d", "etc/rc2.d")
	h := supervised(t, root)
	u := h.unit("a", rolePolite)
	h.install(t, u)
	script, link := filepath.Join(root, "etc/init.d/orrery"), filepath.Join(root, "etc/rc2.d/S99orrery")
	for name, damage := range map[string]func() error{
		"NoScript":   func() error { return os.Remove(script) },
		"NoLink":     func() error { return os.Remove(link) },
		"Disabled":   func() error { return os.Rename(link, filepath.Join(root, "etc/rc2.d/K01orrery")) },
		"NotAllowed": func() error { return os.Chmod(script, 0o644) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if s := h.status(t, "a"); !s.Installed || s.DefinitionHash != "" {
			t.Errorf("%s: got %+v, want no hash", name, s)
		}
		if err := h.Install(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if s := h.status(t, "a"); s.DefinitionHash != Hash(u) {
			t.Errorf("%s, installed again: got %+v, want its hash", name, s)
		}
		if diff := cmp.Diff([]string{"init.d/orrery", "rc2.d/S99orrery"}, files(t, filepath.Join(root, "etc"))); diff != "" {
			t.Errorf("%s, installed again (-want +got):\n%s", name, diff)
		}
	}
	// insserv gives links other numbers, which does no harm.
	if err := os.Rename(link, filepath.Join(root, "etc/rc2.d/S03orrery")); err != nil {
		t.Fatal(err)
	}
	if err := h.Install(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"init.d/orrery", "rc2.d/S03orrery"}, files(t, filepath.Join(root, "etc"))); diff != "" {
		t.Errorf("renumbered (-want +got):\n%s", diff)
	}
}

func TestBootServiceOfAnother(t *testing.T) {
	t.Parallel()
	root := bootable(t, "etc/init.d", "etc/rc2.d")
	h := supervised(t, root)
	script := filepath.Join(root, "etc/init.d/orrery")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Install(t.Context(), h.unit("a", rolePolite)); err == nil || !strings.Contains(err.Error(), script) {
		t.Errorf("install: got %v, want it to name %s", err, script)
	}
	if err := h.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"etc/init.d/orrery"}, files(t, root)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// The service starts all units, is believed when it says whether they run, and stops them in order.
func TestBootServiceActions(t *testing.T) {
	t.Parallel()
	root := bootable(t, "it's a root/etc/init.d", "it's a root/etc/rc2.d")
	root = filepath.Join(root, "it's a root")
	h := supervised(t, root)
	do := func(action string, want int) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), filepath.Join(root, "etc/rc2.d/S99orrery"), action).CombinedOutput()
		code := 0
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want {
			t.Errorf("%s: got exit code %d, want %d; %s", action, code, want, out)
		}
		return string(out)
	}
	dumped := h.unit("dump", roleDump)
	h.install(t, h.unit("a", rolePolite))
	h.install(t, dumped)
	if got := do("status", 3); got != "orrery does not run\n" {
		t.Errorf("status before the start: %q", got)
	}
	do("start", 0)
	eventually(t, "a runs", func() bool { return h.status(t, "a").Running })
	first := h.status(t, "a").PID
	_, byBoot, _ := strings.Cut(h.waitLog(t, "dump", "dump {"), "dump {")
	pid := strconv.Itoa(supervisorPID(t, root))
	if got := do("status", 0); got != "orrery runs as process "+pid+"\n" {
		t.Errorf("status: got %q, want process %s", got, pid)
	}
	do("start", 0)
	do("stop", 0)
	if runs(first) {
		t.Error("stopped: a unit still runs")
	}
	eventually(t, "the supervisor has ended", func() bool { return supervisorPID(t, root) == 0 })
	do("stop", 0)
	do("bogus", 2)

	// Started for a unit, as it is when the agent starts it, it gives units the same environment.
	if err := os.Remove(newLayout(root).unitLog("dump")); err != nil {
		t.Fatal(err)
	}
	h.restart(t, "dump")
	_, byAgent, _ := strings.Cut(h.waitLog(t, "dump", "dump {"), "dump {")
	if diff := cmp.Diff(byAgent, byBoot); diff != "" {
		t.Errorf("units started by the service (-want +got):\n%s", diff)
	}

	// Of one that was killed the lock stays, which may name any process.
	killSupervisor(t, root)
	l := newLayout(root)
	eventually(t, "the kernel has given its lock back", func() bool {
		unlock, err := lock(l.lock())
		if err == nil {
			unlock()
		}
		return err == nil
	})
	if err := os.WriteFile(l.lock(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	do("status", 3)
	do("restart", 0)
	eventually(t, "a runs again", func() bool { return h.status(t, "a").Running })
}

// A real host whose power is cut: what was installed runs again, and removal leaves the host as it was.
func TestBoot(t *testing.T) {
	l, err := lab.Start(t.Context(), lab.Options{Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h := l.Host("host-1")
	self, err := os.Open(self(t))
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	inside, err := os.OpenFile(filepath.Join(h.Root(), "opt/unit.test"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(inside, self); err != nil {
		t.Fatal(err)
	}
	if err := inside.Close(); err != nil {
		t.Fatal(err)
	}
	run := func(argv ...string) string {
		t.Helper()
		out, err := h.Run(t.Context(), argv...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	before, err := h.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run("/opt/unit.test", play, roleInstall)
	first := run("/opt/unit.test", play, roleObserve)
	if !strings.Contains(first, "Running:true") {
		t.Fatalf("installed: got %q", first)
	}
	for range 2 {
		h.Kill()
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the unit runs after the boot", func() bool {
			return strings.Contains(run("/opt/unit.test", play, roleObserve), "Running:true")
		})
	}
	run("/opt/unit.test", play, roleRemove)
	run("rm", "-r", "/var/lib/orrery") // the node's own, which whoever has units there removes
	eventually(t, "the host is as it was", func() bool {
		after, err := h.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		diff := lab.Diff(before, after)
		if diff != "" {
			t.Log(diff)
		}
		return diff == ""
	})
}
