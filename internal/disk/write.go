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
	PointCreated      = "file/created"
	PointBeforeRename = "file/before-rename"
	PointAfterRename  = "file/after-rename"
)

// Writer replaces files. The zero value is for production use.
type Writer struct {
	// NoSync skips the calls of fsync, which are needed only to survive a loss of power.
	NoSync bool
	// Fault is called at each point; nil: never. If it returns an error, the write ends there.
	Fault func(point string) error
}

// WriteFile replaces a file. Its directory must exist. Processes that may write the same file
// at the same time must use a lock; otherwise one of the writes may fail.
func WriteFile(path string, mode fs.FileMode, content []byte) error {
	return Writer{}.WriteFile(path, mode, content)
}

// WriteFile replaces a file with the content.
func (w Writer) WriteFile(path string, mode fs.FileMode, content []byte) error {
	return w.Write(path, mode, func(f io.Writer) error {
		_, err := f.Write(content)
		return err
	})
}

// Write replaces a file with the output of write.
func (w Writer) Write(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	beside := Beside(path)
	if err := Remove(beside); err != nil { // left by a killed process
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

func (w Writer) fault(point string) error {
	if w.Fault == nil {
		return nil
	}
	return w.Fault(point)
}

// SyncDir makes renames, links and removals in a directory durable.
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

// besideSuffix is the suffix of files that are not renamed yet.
const besideSuffix = ".orrery-new"

// Beside returns the path to which a file is written before it is renamed. It is always the
// same, so that the next write finds the file of a killed process.
func Beside(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+besideSuffix)
}

// Partial reports whether name belongs to a file that is not renamed yet. A killed process may
// leave such a file.
func Partial(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, besideSuffix)
}

// Remove removes a file or an empty directory, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
