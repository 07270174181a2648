package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/disk"
)

// When this binary is started as another process, these variables select its task and its file.
const killPoint, killPath, holdPath = "DISK_TEST_KILL_AT", "DISK_TEST_PATH", "DISK_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(killPath); path != "" {
		w := disk.Writer{Fault: func(point string) error {
			if point == os.Getenv(killPoint) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return nil
		}}
		if err := w.WriteFile(path, 0o600, []byte("new")); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	if path := os.Getenv(holdPath); path != "" {
		f, err := disk.TryLock(path)
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString("locked\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
		disk.Unlock(f)
	}
	os.Exit(m.Run())
}

// TestKilled kills a process at each step of a write. The file then has the old or the new
// content. The next write succeeds and leaves no other files behind.
func TestKilled(t *testing.T) {
	for point, want := range map[string]string{
		disk.PointCreated: "old", disk.PointBeforeRename: "old", disk.PointAfterRename: "new",
	} {
		for _, had := range []bool{true, false} {
			t.Run(strings.ReplaceAll(point, "/", ":"), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "file")
				if had {
					if err := disk.WriteFile(path, 0o600, []byte("old")); err != nil {
						t.Fatal(err)
					}
				}
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), killPoint+"="+point, killPath+"="+path)
				if err := cmd.Run(); err == nil {
					t.Fatal("the process was not killed")
				}
				content, err := os.ReadFile(path)
				if gone := errors.Is(err, fs.ErrNotExist); gone && (had || want == "new") || !gone && string(content) != want {
					t.Errorf("the file has %q, %v, want %q", content, err, want)
				}
				if err := disk.WriteFile(path, 0o640, []byte("newer")); err != nil {
					t.Fatal(err)
				}
				entries, err := os.ReadDir(filepath.Dir(path))
				if err != nil || len(entries) != 1 {
					t.Errorf("%v were left, %v", entries, err)
				}
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
					t.Errorf("%v, %v", info, err)
				}
			})
		}
	}
}

// TestFails: a failed write leaves the old content, and no other files.
func TestFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := disk.WriteFile(path, 0o600, []byte("old")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{disk.PointCreated, disk.PointBeforeRename} {
		broken := errors.New("broken")
		w := disk.Writer{Fault: func(point string) error {
			if point == at {
				return broken
			}
			return nil
		}}
		if err := w.WriteFile(path, 0o600, []byte("new")); !errors.Is(err, broken) || !strings.Contains(err.Error(), path) {
			t.Errorf("broken at %s: %v", at, err)
		}
		content, err := os.ReadFile(path)
		entries, listed := os.ReadDir(filepath.Dir(path))
		if string(content) != "old" || len(entries) != 1 || err != nil || listed != nil {
			t.Errorf("broken at %s: it has %q, %v; there are %v, %v", at, content, err, entries, listed)
		}
	}
}

// TestLock: a process holds a lock until it is killed. Then a waiting process gets the lock.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdPath+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("locked\n"))
	if _, err := out.Read(line); err != nil || !bytes.Equal(line, []byte("locked\n")) {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := disk.TryLock(path); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("TryLock: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := disk.Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock: %v", err)
	}
	locked := make(chan error, 1)
	go func() {
		f, err := disk.Lock(t.Context(), path)
		if err == nil {
			disk.Unlock(f)
		}
		locked <- err
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Errorf("Lock after the other was killed: %v", err)
	}
	_ = cmd.Wait() // it was killed
}

// TestLockRemoved: if the file of a lock is removed while Lock waits, Lock locks the file that
// has the path afterwards.
func TestLockRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := disk.TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	var got *os.File
	locked := make(chan error, 1)
	go func() {
		var err error
		got, err = disk.Lock(t.Context(), path)
		locked <- err
	}()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	disk.Unlock(held)
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	defer disk.Unlock(got)
	if _, err := disk.TryLock(path); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("the file that is there is not locked: %v", err)
	}
}

// TestIsLocked: IsLocked sees who holds a lock, and does not prevent others from taking the lock.
func TestIsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lock")
		isLocked := func(want bool) {
			t.Helper()
			if got, err := disk.IsLocked(path); got != want || err != nil {
				t.Fatalf("locked: %v, %v; want %v", got, err, want)
			}
		}
		isLocked(false)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("a look created the file (%v)", err)
		}
		held, err := disk.TryLock(path)
		if err != nil {
			t.Fatal(err)
		}
		isLocked(true)
		isLocked(true)
		disk.Unlock(held)
		isLocked(false)

		// A process in IsLocked has a shared lock.
		looks, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer looks.Close()
		if err := syscall.Flock(int(looks.Fd()), syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		isLocked(false)
		if _, err := disk.TryLock(path); !errors.Is(err, disk.ErrLocked) {
			t.Fatalf("while another looks for good: %v", err)
		}
		time.AfterFunc(10*time.Millisecond, func() { disk.Unlock(looks) })
		held, err = disk.TryLock(path)
		if err != nil {
			t.Fatalf("a look prevented a lock: %v", err)
		}
		isLocked(true)
		disk.Unlock(held)
	})
}

// TestLockOpen: an open directory can be locked.
func TestLockOpen(t *testing.T) {
	dir := t.TempDir()
	var held [2]*os.File
	for i := range held {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		held[i] = f
	}
	got := []bool{disk.TryLockOpen(held[0]) == nil, errors.Is(disk.TryLockOpen(held[1]), disk.ErrLocked)}
	disk.Unlock(held[0])
	got = append(got, disk.LockOpen(t.Context(), held[1]) == nil)
	if diff := cmp.Diff([]bool{true, true, true}, got); diff != "" {
		t.Error(diff)
	}
}
