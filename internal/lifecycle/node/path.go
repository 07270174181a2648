package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/disk"
)

// pathBefore is what was at a path before the first change.
type pathBefore struct {
	Path string `json:"path"`
	// Type is empty if nothing was there.
	Type pathType `json:"type,omitempty"`
	// Backup is the name of the file's backup.
	Backup string `json:"backup,omitempty"`
	// Target of a symbolic link.
	Target string `json:"target,omitempty"`
	// Entries of a directory.
	Entries []string `json:"entries,omitempty"`
	// The other fields are for files and directories.
	Mode    fs.FileMode `json:"mode,omitempty"`
	UID     int         `json:"uid,omitempty"`
	GID     int         `json:"gid,omitempty"`
	ModTime time.Time   `json:"modTime,omitzero"`
}

type pathType string

const (
	typeFile      pathType = "file"
	typeLink      pathType = "link"
	typeDirectory pathType = "directory"
)

// capturePath records what is at a path, unless it is recorded already.
func (s *session) capturePath(r *record, path string) error {
	if slices.ContainsFunc(r.Before.Paths, func(b pathBefore) bool { return b.Path == path }) {
		return nil
	}
	if err := s.captureParents(path); err != nil {
		return err
	}
	at := s.path(path)
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		r.Before.Paths = append(r.Before.Paths, pathBefore{Path: path})
		return nil
	}
	if err != nil {
		return err
	}
	b := pathBefore{Path: path}
	if info.Mode().Type() == fs.ModeSymlink && r.Step.Directory != nil { // a link to a directory
		if info, err = os.Stat(at); err != nil {
			return fmt.Errorf("%s is a link to nothing: %w", path, err)
		}
	}
	var stat unix.Stat_t
	if err := unix.Stat(at, &stat); err != nil && info.Mode().Type() != fs.ModeSymlink {
		return &fs.PathError{Op: "stat", Path: at, Err: err}
	}
	b.Mode, b.ModTime, b.UID, b.GID = info.Mode().Perm(), info.ModTime(), int(stat.Uid), int(stat.Gid)
	switch info.Mode().Type() {
	case 0:
		b.Type = typeFile
		b.Backup = backupName(r.Step.ID, path)
		err = s.backUp(at, s.dir("backup", b.Backup), b)
	case fs.ModeSymlink:
		b.Type = typeLink
		b.Target, err = os.Readlink(at)
	case fs.ModeDir:
		b.Type = typeDirectory
		b.Entries, err = names(at)
	default:
		err = fmt.Errorf("%s is a %s; move it away", path, info.Mode().Type())
	}
	if err != nil {
		return err
	}
	if (b.Type == typeDirectory) != (r.Step.Directory != nil) {
		return fmt.Errorf("%s is a %s; move it away", path, b.Type)
	}
	r.Before.Paths = append(r.Before.Paths, b)
	return nil
}

// captureParents records the missing parents of a path.
func (s *session) captureParents(path string) error {
	for dir := filepath.Dir(filepath.Clean("/" + path)); dir != "/"; dir = filepath.Dir(dir) {
		_, err := os.Stat(s.path(dir))
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !slices.Contains(s.state.Made, dir) {
			s.state.Made = append(s.state.Made, dir)
		}
	}
	return nil
}

// makeParents creates missing parents of a path with mode 0755.
func (s *session) makeParents(path string) error {
	dir := filepath.Dir(filepath.Clean("/" + path))
	if _, err := os.Stat(s.path(dir)); dir == "/" || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.makeParents(dir); err != nil {
		return err
	}
	return s.makeDirectory(dir, 0o755)
}

func (s *session) makeDirectory(path string, mode fs.FileMode) error {
	at := s.path(path)
	if err := os.Mkdir(at, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return full(at, err)
	}
	if err := os.Chmod(at, mode); err != nil { // regardless of the umask
		return err
	}
	return s.writer().SyncDir(filepath.Dir(at))
}

func backupName(id, path string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + path))
	return hex.EncodeToString(sum[:16])
}

// backUp keeps a copy of a file. Files are never written in place, so a hard link is a copy. If the
// file system does not allow it, backUp copies the content.
func (s *session) backUp(from, to string, b pathBefore) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return full(to, err)
	}
	if err := disk.Remove(to); err != nil { // an agent was killed before it recorded this one
		return err
	}
	if os.Link(from, to) == nil {
		return s.writer().SyncDir(filepath.Dir(to))
	}
	return s.copyFile(from, to, b)
}

// copyFile copies a file with its mode, owner and time.
func (s *session) copyFile(from, to string, b pathBefore) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	err = s.writeFile(to, b.Mode, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
	if err != nil {
		return err
	}
	return own(to, b)
}

// own restores the owner, mode and time of a path. The mode is last, because a change of owner
// clears some bits of it.
func own(at string, b pathBefore) error {
	var stat unix.Stat_t
	if err := unix.Stat(at, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: at, Err: err}
	}
	if int(stat.Uid) != b.UID || int(stat.Gid) != b.GID {
		if err := os.Chown(at, b.UID, b.GID); err != nil {
			return err
		}
	}
	if err := os.Chmod(at, b.Mode); err != nil {
		return err
	}
	return os.Chtimes(at, b.ModTime, b.ModTime)
}

// restorePath restores what was at a path. It may be called again.
func (s *session) restorePath(r *record, b pathBefore) error {
	at := s.path(b.Path)
	if err := disk.Remove(disk.Beside(at)); err != nil && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	if err := s.fault("path/before-restore"); err != nil {
		return err
	}
	var err error
	switch {
	case b.Type == typeDirectory:
		err = s.restoreDirectory(r, at, b)
	case b.Type == "" && r.Step.Directory != nil:
		err = s.removeDirectory(r, at, b.Path)
	case b.Type == "":
		if err = disk.Remove(at); errors.Is(err, unix.ENOTDIR) {
			err = nil
		}
	case b.Type == typeLink:
		if err = s.makeParents(b.Path); err == nil {
			err = os.Symlink(b.Target, disk.Beside(at))
		}
		if err == nil {
			err = os.Rename(disk.Beside(at), at)
		}
	default:
		err = s.restoreFile(r, at, b)
	}
	if err != nil {
		return err
	}
	return s.fault("path/restored")
}

func (s *session) restoreFile(r *record, at string, b pathBefore) error {
	backup := s.dir("backup", b.Backup)
	if _, err := os.Lstat(backup); errors.Is(err, fs.ErrNotExist) {
		r.notes = append(r.notes, b.Path+" cannot be brought back: its copy is gone")
		return disk.Remove(at)
	}
	if err := s.makeParents(b.Path); err != nil {
		return err
	}
	// The backup stays as long as the state names it.
	if err := os.Link(backup, disk.Beside(at)); err != nil {
		return s.copyFile(backup, at, b)
	}
	// Renaming one hard link of a file to another does nothing and leaves both.
	if err := errors.Join(os.Rename(disk.Beside(at), at), disk.Remove(disk.Beside(at))); err != nil {
		return err
	}
	return s.writer().SyncDir(filepath.Dir(at))
}

// restoreDirectory restores the mode, owner and time of a directory that existed before. In an
// Owned directory it also removes new entries.
func (s *session) restoreDirectory(r *record, at string, b pathBefore) error {
	now, err := names(at)
	if errors.Is(err, fs.ErrNotExist) {
		return s.makeDirectory(b.Path, b.Mode)
	}
	if err != nil {
		return err
	}
	if r.Step.Directory.Owned {
		if err := s.System.UnmountBelow(at); err != nil {
			return err
		}
		for _, name := range now {
			if slices.Contains(b.Entries, name) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(at, name)); err != nil {
				return err
			}
		}
	}
	return own(at, b)
}

// removeDirectory removes a directory that a step created. Unless it is Owned, it must be empty,
// else it is removed later.
func (s *session) removeDirectory(r *record, at, path string) error {
	if r.Step.Directory.Owned {
		if err := s.System.UnmountBelow(at); err != nil {
			return err
		}
		return os.RemoveAll(at)
	}
	gone, err := removeEmpty(at)
	if !gone && err == nil && !slices.Contains(s.state.Made, path) {
		s.state.Made = append(s.state.Made, path) // removed as soon as it is empty
	}
	return err
}

// keepPaths undoes the step at recorded paths other than the given ones, which an earlier version
// of the step had.
func (s *session) keepPaths(r *record, paths ...string) error {
	for _, b := range slices.Clone(r.Before.Paths) {
		if slices.Contains(paths, b.Path) {
			continue
		}
		if err := s.restorePath(r, b); err != nil {
			return err
		}
		r.Before.Paths = slices.DeleteFunc(r.Before.Paths, func(o pathBefore) bool { return o.Path == b.Path })
	}
	return nil
}

// restorePaths undoes the step at every path, in reverse order. The paths stay recorded until the
// whole step is undone.
func (s *session) restorePaths(r *record) error {
	for _, b := range slices.Backward(r.Before.Paths) {
		if err := s.restorePath(r, b); err != nil {
			return err
		}
	}
	return nil
}

// removeMade removes created parents that are empty now.
func (s *session) removeMade() error {
	needed := make(map[string]bool)
	for _, r := range s.state.Steps {
		if d := r.Step.Directory; d != nil {
			needed[filepath.Clean(d.Path)] = true
		}
	}
	slices.SortFunc(s.state.Made, func(a, b string) int { return len(b) - len(a) })
	for _, dir := range slices.Clone(s.state.Made) {
		if needed[dir] {
			continue
		}
		gone, err := removeEmpty(s.path(dir))
		if err != nil {
			return err
		}
		if gone {
			s.state.Made = slices.DeleteFunc(s.state.Made, func(made string) bool { return made == dir })
		}
	}
	return nil
}

// dropBackups removes backups that no record refers to.
func (s *session) dropBackups() error {
	used := make(map[string]bool)
	for _, r := range s.state.Steps {
		for _, b := range r.Before.Paths {
			used[b.Backup] = true
		}
	}
	backups, err := names(s.dir("backup"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range backups {
		if !used[name] {
			if err := disk.Remove(s.dir("backup", name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	list := make([]string, 0, len(entries))
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, err
}
