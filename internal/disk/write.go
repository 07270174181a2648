// Package disk replaces files so that a crash leaves the old one or the new one, and locks what one process at a time may
// work on.
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

// Points at which a Writer can be made to break off.
const (
	PointCreated      = "file/created"
	PointBeforeRename = "file/before-rename"
	PointAfterRename  = "file/after-rename"
)

// Writer replaces files. The zero value is what a product uses.
type Writer struct {
	// NoSync leaves out what is only needed to survive a loss of power.
	NoSync bool
	// Fault, unless nil, is called at each point; the write ends there if it returns an error.
	Fault func(point string) error
}

// WriteFile replaces a file, whose directory is there. Two processes that write one file at a time must lock each other
// out; one of them may fail otherwise.
func WriteFile(path string, mode fs.FileMode, content []byte) error {
	return Writer{}.WriteFile(path, mode, content)
}

// WriteFile replaces a file with a content.
func (w Writer) WriteFile(path string, mode fs.FileMode, content []byte) error {
	return w.Write(path, mode, func(f io.Writer) error {
		_, err := f.Write(content)
		return err
	})
}

// Write replaces a file with what the function writes.
func (w Writer) Write(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	beside := Beside(path)
	if err := Remove(beside); err != nil { // a process was killed while it wrote
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

// SyncDir makes last what was renamed, linked or removed in a directory.
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

// besideSuffix ends the names of files that are not renamed yet.
const besideSuffix = ".orrery-new"

// Beside is where a file is written before it is renamed. The name is always the same, so that the next write finds what
// a killed process left.
func Beside(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+besideSuffix)
}

// Partial is true of the name of a file that is not renamed yet, and stays such when the process is killed.
func Partial(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, besideSuffix)
}

// Remove removes a file or an empty directory that may not be there.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
