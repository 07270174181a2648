package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/disk"
)

// writer returns the disk.Writer that replaces files on the host atomically. It syncs them unless
// n.NoSync is true.
func (n *Node) writer() disk.Writer { return disk.Writer{NoSync: n.NoSync, Fault: n.Fault} }

// writeFile replaces the file at path by the output of write, completely or not at all. path
// includes Root, and its parent directory must exist. An error about a full disk says where to free
// space.
func (n *Node) writeFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	return full(path, n.writer().Write(path, mode, write))
}

// removeEmpty removes a directory if it is empty, and reports whether the directory is gone. It is
// true if there is no directory at the path. It is false, without an error, if the directory is
// busy or not empty.
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

// full completes an error about a full disk or an exceeded quota: it adds the mount point of path
// and asks for free space. It returns other errors, and nil, as they are.
func full(path string, err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: the file system at %s is full; free space there and run this again", err, mountPoint(path))
}

// mountPoint returns the mount point of the file system that holds the parent directory of
// path.
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

// parseMode parses permissions as octal digits, such as "0755". Other mode bits are an error.
func parseMode(mode string) (fs.FileMode, error) {
	bits, err := strconv.ParseUint(mode, 8, 12)
	if err != nil || bits&^0o777 != 0 {
		return 0, fmt.Errorf("mode %q: want permissions as octal digits, such as 0644", mode)
	}
	return fs.FileMode(bits), nil
}
