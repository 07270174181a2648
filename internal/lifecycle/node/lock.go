package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockInterval is how often a lock that another agent holds is asked for.
const lockInterval = 20 * time.Millisecond

// lock waits for a lock file until ctx ends. It is held until unlock, or the end of the process.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for {
		f, err := tryLock(path)
		if f != nil || err != nil {
			return func() { _ = f.Close() }, err // it was only ever locked
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another agent that is at work on this host: %w", context.Cause(ctx))
		}
	}
}

// tryLock returns no file while another agent holds the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", full(path, err))
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	// The agent that held it may have removed everything, the file too: a lock on what is no longer there locks nothing.
	ours, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	there, err := os.Stat(path)
	switch {
	case err == nil && os.SameFile(ours, there):
		return f, nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil, f.Close()
	default:
		return nil, errors.Join(err, f.Close())
	}
}
