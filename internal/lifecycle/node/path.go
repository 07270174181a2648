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

// pathBefore is what was at a path of the host before a step changed it for the first time. Undoing
// the step restores it.
type pathBefore struct {
	Path string `json:"path"`
	// Type is empty if nothing was there.
	Type pathType `json:"type,omitempty"`
	// Backup is the name of the backup of a file, in the directory backup of the agent's records.
	Backup string `json:"backup,omitempty"`
	// Target is where a symbolic link leads.
	Target string `json:"target,omitempty"`
	// Entries are the names in a directory.
	Entries []string `json:"entries,omitempty"`
	// The other fields are for files and directories.
	Mode    fs.FileMode `json:"mode,omitempty"`
	UID     int         `json:"uid,omitempty"`
	GID     int         `json:"gid,omitempty"`
	ModTime time.Time   `json:"modTime,omitzero"`
}

// pathType is the type of the file that was at a path.
type pathType string

const (
	// typeFile, typeLink and typeDirectory are a regular file, a symbolic link and a directory.
	typeFile      pathType = "file"
	typeLink      pathType = "link"
	typeDirectory pathType = "directory"
)

// capturePath records in r.Before what is at a path, and in the state which of its parents are
// missing. It keeps a backup of a file. It does nothing if r.Before has the path already.
//
// It returns an error if the step cannot replace what is there. A directory step can replace only a
// directory, or a link to one. Other steps can replace only a file or a link.
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
		err = fmt.Errorf("%s is a %s, not a file, link or directory; move it away", path, info.Mode().Type())
	}
	if err != nil {
		return err
	}
	if (b.Type == typeDirectory) != (r.Step.Directory != nil) {
		return fmt.Errorf("%s is a %s, and the step needs another type; move it away", path, b.Type)
	}
	r.Before.Paths = append(r.Before.Paths, b)
	return nil
}

// captureParents records in s.state.Made which parents of a path are missing. makeParents creates
// them later. When the step is undone, removeMade removes those that are empty.
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

// makeParents creates the missing parents of a path with mode 0755. captureParents must have
// recorded them, so that they can be removed again.
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

// makeDirectory creates a directory, whose parent must exist, and sets its mode. It sets the
// mode also if the directory exists.
func (s *session) makeDirectory(path string, mode fs.FileMode) error {
	at := s.path(path)
	if err := os.Mkdir(at, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return full(at, err)
	}
	if err := os.Chmod(at, mode); err != nil { // the umask may have removed bits of the mode
		return err
	}
	return s.writer().SyncDir(filepath.Dir(at))
}

// backupName returns the file name of the backup that a step keeps of a path. id is the ID of the
// step.
func backupName(id, path string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + path))
	return hex.EncodeToString(sum[:16])
}

// backUp keeps a copy of the file from at the path to, and creates the directory of to. The copy is
// a hard link if possible, because the agent never writes into existing files. Otherwise backUp
// copies the content, with the mode, owner and time in b.
func (s *session) backUp(from, to string, b pathBefore) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return full(to, err)
	}
	if err := disk.Remove(to); err != nil { // left by an agent that was killed
		return err
	}
	if os.Link(from, to) == nil {
		return s.writer().SyncDir(filepath.Dir(to))
	}
	return s.copyFile(from, to, b)
}

// copyFile copies a file, and gives the copy the mode, owner and time in b.
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

// own sets the owner, mode and time of a path to those in b. The mode is set after the owner,
// because a change of owner clears some bits of it.
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

// restorePath restores what was at a path before the step; b describes that. A new directory that
// is not empty and not Owned stays, see removeDirectory. restorePath may be repeated after an
// interruption.
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

// restoreFile replaces the file at the path at by its backup. If the backup is gone, it removes the
// file and adds a note to the record, without an error.
func (s *session) restoreFile(r *record, at string, b pathBefore) error {
	backup := s.dir("backup", b.Backup)
	if _, err := os.Lstat(backup); errors.Is(err, fs.ErrNotExist) {
		r.notes = append(r.notes, b.Path+" cannot be brought back: its copy is gone")
		return disk.Remove(at)
	}
	if err := s.makeParents(b.Path); err != nil {
		return err
	}
	// Keep the backup, because the state still names it: restorePath may run again.
	if err := os.Link(backup, disk.Beside(at)); err != nil {
		return s.copyFile(backup, at, b)
	}
	// If at is already a link to the backup, Rename does nothing and leaves both names.
	if err := errors.Join(os.Rename(disk.Beside(at), at), disk.Remove(disk.Beside(at))); err != nil {
		return err
	}
	return s.writer().SyncDir(filepath.Dir(at))
}

// restoreDirectory restores the mode, owner and time of the directory at the path at, which existed
// before the step. If the step's directory is Owned, it also removes entries that were not there
// before. If the directory is gone, it creates an empty one with the former mode.
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

// removeDirectory removes a directory that the step created. An Owned directory is removed with its
// content, after a check that nothing is mounted below it. Another directory stays if it is not
// empty. s.state.Made then has its path, so that removeMade removes it once it is empty.
func (s *session) removeDirectory(r *record, at, path string) error {
	if r.Step.Directory.Owned {
		if err := s.System.UnmountBelow(at); err != nil {
			return err
		}
		return os.RemoveAll(at)
	}
	gone, err := removeEmpty(at)
	if !gone && err == nil && !slices.Contains(s.state.Made, path) {
		s.state.Made = append(s.state.Made, path) // removeMade removes it as soon as it is empty
	}
	return err
}

// keepPaths restores what was at recorded paths other than the given ones, and removes these paths
// from the record. They belonged only to an earlier version of the step.
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

// restorePaths restores what was at every recorded path of a step, in reverse order. The paths stay
// in the record until the caller removes the record.
func (s *session) restorePaths(r *record) error {
	for _, b := range slices.Backward(r.Before.Paths) {
		if err := s.restorePath(r, b); err != nil {
			return err
		}
	}
	return nil
}

// removeMade removes the directories in s.state.Made that are empty, from the host and from the
// list. The agent created them as parents of other paths. It keeps directories that an applied
// directory step needs. It does not save the state.
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

// dropBackups removes backups of files that no record in the state refers to.
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

// names returns the names of the entries of a directory, sorted.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	list := make([]string, 0, len(entries))
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, err
}
