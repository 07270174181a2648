package hub

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"orrery.dev/orrery/internal/disk"
)

// layoutVersion is the version of the data directory's layout. It increases when an older server
// cannot work with the data of a newer one.
const layoutVersion = 2 // 2: Secrets are encrypted

// dataDir is the path of the directory of everything that the hub stores.
type dataDir string

// path returns the path of a file below the data directory.
func (d dataDir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// version returns the path of the file with the version of the directory's layout (layoutVersion).
func (d dataDir) version() string { return d.path("VERSION") }

// ports returns the path of the file with the ports that the hub has chosen.
func (d dataDir) ports() string { return d.path("ports.json") }

// kubeconfig returns the path of the kubeconfig for the hub's user.
func (d dataDir) kubeconfig() string { return d.path("kubeconfig") }

// processes returns the directory of the logs and PID files of the hub's processes.
func (d dataDir) processes() string { return d.path("processes") }

// etcd returns the directory of etcd's data and sockets.
func (d dataDir) etcd() string { return d.path("etcd") }

// pki returns the path of a file in the directory of authorities, certificates and keys.
func (d dataDir) pki(name string) string { return d.path("pki", name) }

// open creates the data directory, or checks that this server can work with it, and locks it. It
// then writes the version of the layout. If a newer server wrote the directory, or another server
// uses it, open changes nothing and returns an error. The returned file holds the lock, until it is
// closed or the process ends.
func (d dataDir) open() (*os.File, error) {
	if err := d.checkVersion(); err != nil {
		return nil, err
	}
	if err := d.make(); err != nil {
		return nil, err
	}
	lock, err := d.lock()
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		writeFile(d.version(), fmt.Appendln(nil, layoutVersion)),
		os.MkdirAll(d.pki(""), 0o700),
	)
	if err != nil {
		disk.Unlock(lock)
		return nil, fmt.Errorf("prepare data directory: %w", err)
	}
	return lock, nil
}

// checkVersion returns an error if a newer server wrote the directory, or if the file with its
// version is invalid. A directory without that file is accepted.
func (d dataDir) checkVersion() error {
	text, err := os.ReadFile(d.version())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read data directory's version: %w", err)
	}
	version, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || version < 1 {
		return fmt.Errorf("%s holds %q, which is not a version: restore the directory from a backup, or choose another with --data-dir", d.version(), text)
	}
	if version > layoutVersion {
		return fmt.Errorf("data directory %s has layout version %d, made by a newer orrery; this one knows up to %d: use the newer one, or choose another directory with --data-dir", d, version, layoutVersion)
	}
	return nil
}

// make creates the directory and makes it accessible to its owner only. If the directory is
// accessible to other users and has files but no version, make changes nothing and returns an
// error. Otherwise --data-dir /tmp would exclude other users from /tmp.
func (d dataDir) make() error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("make data directory: %w; choose another with --data-dir", err)
	}
	info, err := os.Stat(string(d))
	if err != nil {
		return fmt.Errorf("look at data directory: %w", err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return fmt.Errorf("read data directory: %w", err)
	}
	if _, err := os.Stat(d.version()); err != nil && len(entries) > 0 {
		return fmt.Errorf("data directory %s is accessible to other users and holds files that are not orrery's: choose another with --data-dir, or `chmod 700` it", d)
	}
	if err := os.Chmod(string(d), 0o700); err != nil { //nolint:gosec // a directory
		return fmt.Errorf("protect data directory: %w", err)
	}
	return nil
}

// lock locks the directory and writes the PID of this process to the lock file. The returned file
// holds the lock. If another process holds the lock, the error names its PID.
func (d dataDir) lock() (*os.File, error) {
	f, err := disk.TryLock(d.path("lock"))
	if errors.Is(err, disk.ErrLocked) {
		pid, _ := os.ReadFile(d.path("lock")) // after an error no process is named
		return nil, fmt.Errorf("data directory %s is in use by process %s: stop that one, or choose another directory with --data-dir", d, bytes.TrimSpace(pid))
	}
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	// The file is written in place, because a rename would leave the lock on a file without a name.
	pid := fmt.Appendln(nil, os.Getpid())
	if err := f.Truncate(0); err != nil {
		disk.Unlock(f)
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if _, err := f.WriteAt(pid, 0); err != nil {
		disk.Unlock(f)
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return f, nil
}

// spaceNeeded is the free space, in bytes, that etcd needs at its start for the write-ahead log
// and the database. Without it, etcd ends with a panic that names neither the disk nor the
// directory.
const spaceNeeded = 160 << 20

// checkSpace returns an error if etcd has no data yet and less than spaceNeeded is free.
func (d dataDir) checkSpace() error {
	if _, err := os.Stat(d.etcd()); err == nil {
		return nil // etcd has its write-ahead log already; an error would not free space
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(string(d), &stat); err != nil {
		return fmt.Errorf("measure free space of %s: %w", d, err)
	}
	if free := stat.Bavail * uint64(stat.Bsize); free < spaceNeeded { //nolint:gosec // a size
		return fmt.Errorf("%d MiB are free in %s and %d are needed: make room, or choose another directory with --data-dir", free>>20, d, spaceNeeded>>20)
	}
	return nil
}

// writeFile replaces the content of a file atomically, readable by its owner only. It does
// nothing if the file has this content already, so that clients do not read it again.
func writeFile(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return disk.WriteFile(path, 0o600, content)
}
