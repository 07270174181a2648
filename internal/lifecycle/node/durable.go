package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// writeFile writes a file beside its place and renames it there, so that it is whole or as it was before, whatever
// happens. write gets the file beside.
func (n *Node) writeFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	temp := beside(path)
	if err := remove(temp); err != nil { // an earlier agent was killed while it wrote
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return full(path, err)
	}
	err = n.fault("file/created")
	if err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && !n.NoSync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = n.fault("file/before-rename")
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return full(path, errors.Join(err, remove(temp)))
	}
	if err := n.syncDir(filepath.Dir(path)); err != nil {
		return err
	}
	return n.fault("file/after-rename")
}

// beside is where a file is written before it is renamed. The name is always the same, so that what a killed agent left
// is found.
func beside(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".orrery-new")
}

// syncDir makes renames in a directory last.
func (n *Node) syncDir(dir string) error {
	if n.NoSync {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove removes a file that may not be there.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeEmpty removes a directory if nothing is in it, and says whether it is gone.
func removeEmpty(path string) (bool, error) {
	err := unix.Rmdir(path)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
		return false, nil
	default:
		return false, &fs.PathError{Op: "rmdir", Path: path, Err: err}
	}
}

// full adds to an error because of a full file system which one it is.
func full(path string, err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("write %s: %w: the file system at %s is full; free space there and run this again", path, err, mountPoint(path))
}

// mountPoint is where the file system of a path begins.
func mountPoint(path string) string {
	dir := filepath.Dir(path)
	for dir != "/" {
		parent := filepath.Dir(dir)
		var a, b unix.Stat_t
		if errA, errB := unix.Stat(dir, &a), unix.Stat(parent, &b); errA == nil && errB == nil && a.Dev != b.Dev {
			break
		}
		dir = parent
	}
	return dir
}

// parseMode reads an octal mode, such as "0755".
func parseMode(mode string) (fs.FileMode, error) {
	bits, err := strconv.ParseUint(mode, 8, 12)
	if err != nil || bits&^0o777 != 0 {
		return 0, fmt.Errorf("mode %q: want permissions as octal digits, such as 0644", mode)
	}
	return fs.FileMode(bits), nil
}
