// Package disk replaces files atomically, so that a crash leaves the old or the new content. It
// also has locks between processes.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Points at which Writer.Fault can stop a write.
const (
	// PointCreated is after the new file was created beside the old one.
	PointCreated = "file/created"
	// PointBeforeRename is after the new file was written.
	PointBeforeRename = "file/before-rename"
	// PointAfterRename is after the new file has replaced the old one.
	PointAfterRename = "file/after-rename"
)

// Writer replaces files. The zero value is for production use. It may be used from several
// goroutines, for different files.
type Writer struct {
	// NoSync skips the calls of fsync, which are needed only to survive a loss of power.
	NoSync bool
	// Fault is called at each of the points PointCreated, PointBeforeRename and PointAfterRename; nil:
	// never. If it returns an error, the write ends there with that error. It is for tests of crashes.
	Fault func(point string) error
}

// WriteFile replaces or creates a file, with exactly this mode. Its directory must exist. Processes
// that may write the same file at the same time must use a lock; otherwise one of the writes may
// fail. After an error the file has its old content, unless only the final fsync of the directory
// failed.
func WriteFile(path string, mode fs.FileMode, content []byte) error {
	return Writer{}.WriteFile(path, mode, content)
}

// WriteFile replaces or creates a file with this content and exactly this mode. Errors are those of
// Write.
func (w Writer) WriteFile(path string, mode fs.FileMode, content []byte) error {
	return w.Write(path, mode, func(f io.Writer) error {
		_, err := f.Write(content)
		return err
	})
}

// Write replaces or creates a file with the output of write, with exactly this mode. The
// output is written beside the file (see Beside) and renamed. If write or a step up to the
// rename fails, the old file stays. An error after the rename means only that the new file
// may not survive a loss of power.
func (w Writer) Write(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	beside := Beside(path)
	if err := Remove(beside); err != nil { // a killed process may have left the file
		return err
	}
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = w.fault(PointCreated); err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && !w.NoSync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = w.fault(PointBeforeRename)
	}
	if err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return errors.Join(err, Remove(beside))
	}
	if err := w.SyncDir(filepath.Dir(path)); err != nil {
		return err
	}
	return w.fault(PointAfterRename)
}

// fault calls w.Fault, if it is set.
func (w Writer) fault(point string) error {
	if w.Fault == nil {
		return nil
	}
	return w.Fault(point)
}

// SyncDir makes renames, links and removals in a directory durable. With NoSync it does
// nothing.
func (w Writer) SyncDir(dir string) error {
	if w.NoSync {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// besideSuffix is the suffix of a file that is written and not renamed yet.
const besideSuffix = ".orrery-new"

// Beside returns the path to which the new content of a file is written before it is renamed to
// path. It is always the same, so that the next write finds the file of a killed process.
func Beside(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+besideSuffix)
}

// Partial reports whether name, without a directory, is that of a file which is being written
// beside its target, as Beside returns it. A killed process may leave such a file.
func Partial(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, besideSuffix)
}

// Remove removes a file or an empty directory. It is no error if the path does not exist.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
