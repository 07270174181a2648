package unit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// errLocked: somebody else holds the lock.
var errLocked = errors.New("another supervisor runs there")

// sign writes who holds the lock, for the service's script.
func sign(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := fmt.Fprintln(f, os.Getpid())
	return err
}

// lock takes the lock file, which is removed when it is given back, with its directory if that is empty.
func lock(path string) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // others may look into /run/orrery
			return nil, fmt.Errorf("lock: %w", err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the directory was just removed
		} else if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			if errors.Is(err, syscall.EWOULDBLOCK) {
				err = errLocked
			}
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		// Between open and flock the one who held it may have removed the file; what is locked then is no lock.
		ours, err := f.Stat()
		if err == nil {
			var now os.FileInfo
			if now, err = os.Stat(path); err == nil && os.SameFile(ours, now) {
				if err := sign(f); err != nil {
					return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
				}
				return func() {
					_ = os.Remove(path) // a lock file that stays does no harm
					_ = os.Remove(filepath.Dir(path))
					_ = f.Close()
				}, nil
			}
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}
