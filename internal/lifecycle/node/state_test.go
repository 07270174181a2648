package node

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// TestDamagedState damages the state in ways that a loss of power can.
func TestDamagedState(t *testing.T) {
	damages := map[string]func(string) error{
		"Empty":     func(path string) error { return os.Truncate(path, 0) },
		"HalfOfIt":  func(path string) error { return os.Truncate(path, 100) },
		"Gone":      os.Remove,
		"Zeros":     func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
		"OneLetter": func(path string) error { return replaceIn(path, "of-alpha", "of-alphb") },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			n := host(t, map[string]string{"/etc/a": "of the user", AgentPath: "agent"})
			req := request(fileStep("a", "/etc/a", "a"), fileStep("b", "/etc/b-of-alpha", "b"))
			done(t, n, req)
			if err := damage(n.dir(stateFile)); err != nil {
				t.Fatal(err)
			}
			done(t, n, req)
			done(t, n, removal())
			if got := tree(t, n, false)["/etc/a"]; got != "-rw-r----- of the user" {
				t.Errorf("/etc/a is %q", got)
			}
		})
		t.Run(name+"AndTheOneBefore", func(t *testing.T) {
			if name == "Gone" { // nothing was ever applied then
				return
			}
			n := host(t, nil)
			done(t, n, request(fileStep("b", "/etc/b-of-alpha", "b"), fileStep("c", "/etc/c", "c")))
			if err := errors.Join(damage(n.dir(stateFile)), damage(n.dir(stateBackup))); err != nil {
				t.Fatal(err)
			}
			e := failed(t, n, request(fileStep("b", "/etc/b-of-alpha", "b")))
			for _, want := range []string{"state.json: damaged", "state.json.bak: damaged", "by hand"} {
				if !strings.Contains(e.Message, want) {
					t.Errorf("message %q, want %q in it", e.Message, want)
				}
			}
			if _, err := n.Observe(t.Context()); err == nil {
				t.Error("a damaged state can be observed")
			}
		})
	}
}

// TestBackupOutlivesAFailedSave: the state file is damaged or missing, and the agent is killed, or
// the disk is full, while it writes the next state. The backup must stay until the state file is
// whole again, and be replaced by later saves.
func TestBackupOutlivesAFailedSave(t *testing.T) {
	damages := map[string]func(string) error{
		"Damaged": func(path string) error { return os.Truncate(path, 100) },
		"Gone":    os.Remove,
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			n := host(t, nil)
			done(t, n, request(fileStep("a", "/etc/a", "a"), fileStep("b", "/etc/b", "b")))
			if err := damage(n.dir(stateFile)); err != nil {
				t.Fatal(err)
			}
			s, err := n.load()
			if err != nil || len(s.Steps) == 0 {
				t.Fatalf("the backup has %d steps, %v", len(s.Steps), err)
			}
			steps := len(s.Steps)
			n.Fault = func(string) error { return unix.ENOSPC }
			if err := n.save(s); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("save: %v", err)
			}
			n.Fault = nil
			if s, err = n.load(); err != nil || len(s.Steps) != steps {
				t.Fatalf("after the failed save the state is %+v, %v; want %d steps", s, err, steps)
			}
			for _, version := range []string{"v1", "v2"} {
				s.Version = version
				if err := n.save(s); err != nil {
					t.Fatal(err)
				}
			}
			if err := damage(n.dir(stateFile)); err != nil {
				t.Fatal(err)
			}
			if s, err = n.load(); err != nil || s.Version != "v1" {
				t.Errorf("the backup after two saves is %+v, %v; want version v1", s, err)
			}
		})
	}
}

func replaceIn(path, old, with string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strings.Replace(string(content), old, with, 1)), 0o600)
}

// TestDiskFull fills a file system. The error names the path and the file system. The record stays
// complete, and everything can be undone while the disk is full.
func TestDiskFull(t *testing.T) {
	n := host(t, nil)
	mount := n.Root
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("mount tmpfs (the tests of hosts need root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	furnish(t, n, map[string]string{"/etc/a": "of the user", AgentPath: "agent"})
	before := tree(t, n, true)
	small, large := fileStep("a", "/etc/a", "a"), fileStep("large", "/srv/large", strings.Repeat("x", 8<<20))
	e := failed(t, n, request(small, large))
	for _, want := range []string{"/srv/large", unix.ENOSPC.Error(), "the file system at " + mount + " is full"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("message %q, want %q in it", e.Message, want)
		}
	}
	// Fill it to the last byte.
	if err := os.WriteFile(n.path("/ballast"), make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	done(t, n, removal())
	if err := os.Remove(n.path("/ballast")); err != nil {
		t.Fatal(err)
	}
	delete(before, AgentPath)
	delete(before, "/opt/orrery/bin")
	delete(before, "/opt/orrery")
	sameTree(t, "after the removal", tree(t, n, true), before)
}
