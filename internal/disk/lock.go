package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another process, or another part of this one, holds the lock.
var ErrLocked = errors.New("it is locked by another process")

// lockInterval is the interval between attempts to lock.
const lockInterval = 20 * time.Millisecond

// Lock opens or creates a file, and waits until it has locked the file or ctx ends. The lock
// ends with Unlock or with the process.
func Lock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := lockFile(path, func(f *os.File) error { return LockOpen(ctx, f) })
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
	}
}

// TryLock is Lock without waiting. It returns ErrLocked if the file is locked.
func TryLock(path string) (*os.File, error) { return lockFile(path, TryLockOpen) }

// lockFile opens or creates a file and locks it. It returns ErrLocked if the path no longer
// leads to that file afterwards.
func lockFile(path string, lock func(*os.File) error) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// The previous holder may have removed or renamed the file. A lock on such a file protects
	// nothing.
	ours, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	there, err := os.Stat(path)
	switch {
	case err == nil && os.SameFile(ours, there):
		return f, nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, ErrLocked), f.Close())
	default:
		return nil, errors.Join(err, f.Close())
	}
}

// LockOpen locks an open file or directory. It waits for the lock until ctx ends.
func LockOpen(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for {
		if err := TryLockOpen(f); !errors.Is(err, ErrLocked) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for another process that works on %s: %w", f.Name(), context.Cause(ctx))
		}
	}
}

// TryLockOpen is LockOpen without waiting. It returns ErrLocked if the file is locked.
func TryLockOpen(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			err = ErrLocked
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil
	}
}

// Unlock releases a lock and closes its file. Closing alone is not enough: a child process that
// is being started shares the open file until it executes its program. Errors are ignored,
// because the lock ends with this process at the latest.
func Unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}
