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

// lockInterval is the interval between two attempts to lock a file.
const lockInterval = 20 * time.Millisecond

// Lock opens or creates a file, with mode 0600, and waits until it has locked the file. The
// error has the cause of ctx if ctx ends first. The lock ends with Unlock or with the
// process. The file stays.
func Lock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := lockFile(path, func(f *os.File) error { return LockOpen(ctx, f) })
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
	}
}

// TryLock opens or creates a file, with mode 0600, and locks it without waiting. It returns
// ErrLocked if the file is locked, or if another file took its path meanwhile.
func TryLock(path string) (*os.File, error) { return lockFile(path, TryLockOpen) }

// lockFile opens or creates a file and locks it by the function lock. It returns ErrLocked if the
// path leads to another file, or none, after that. After an error, the file is closed.
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

// LockOpen locks an open file or directory. It waits for the lock until ctx ends; the error
// then has the cause of ctx. The file stays open after an error.
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

// TryLockOpen locks an open file or directory without waiting for a process that holds the lock. It
// returns ErrLocked if the file is locked through another open file, also of this process. A lock
// that f itself holds is no error. The file stays open after an error. TryLockOpen waits up to
// lookLimit for calls of IsLocked.
func TryLockOpen(f *os.File) error {
	for waited := time.Duration(0); ; waited += lookInterval {
		if err := flock(f, unix.LOCK_EX); !errors.Is(err, ErrLocked) || waited >= lookLimit {
			return err
		}
		// If f gets a shared lock, no process holds the lock, and others have shared ones in IsLocked.
		if err := flock(f, unix.LOCK_SH); err != nil {
			return err
		}
		if err := flock(f, unix.LOCK_UN); err != nil {
			return err
		}
		time.Sleep(lookInterval)
	}
}

// lookInterval is the interval at which TryLockOpen tries again while other processes are in
// IsLocked, lookLimit the time after which it gives up. A call of IsLocked takes microseconds.
const (
	lookInterval = time.Millisecond
	lookLimit    = time.Second
)

// IsLocked reports whether a process holds the lock on the file or directory at a path. It is false
// if path does not exist. It needs the right to read the file, and changes nothing. A process that
// wants the lock at the same time gets it nevertheless.
func IsLocked(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the lock %s: %w", path, err)
	}
	defer Unlock(f)
	err = flock(f, unix.LOCK_SH)
	if errors.Is(err, ErrLocked) {
		return true, nil
	}
	return false, err
}

// flock applies an operation of flock(2), such as unix.LOCK_EX, to an open file without waiting. It
// returns ErrLocked if the lock conflicts with one of another open file.
func flock(f *os.File, operation int) error {
	for {
		err := unix.Flock(int(f.Fd()), operation|unix.LOCK_NB)
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

// Unlock releases the lock on a file and closes the file. Closing alone is not enough: a child
// process that is being started shares the open file until it executes its program. Errors are
// ignored, because the lock ends with this process at the latest.
func Unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}
