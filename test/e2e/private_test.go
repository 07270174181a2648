package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"orrery.dev/orrery/test/e2e/demo"
)

// TestFilesArePrivate: only the user of the demo can read the files that its processes wrote, also
// those of the hub and of the clusters. It does not depend on the umask of the shell.
func TestFilesArePrivate(t *testing.T) {
	files := 0
	err := filepath.WalkDir(demo.Dir(), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // the file was replaced meanwhile
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		if err != nil {
			return err
		}
		files++
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %s", path, info.Mode())
		}
		return nil
	})
	if err != nil || files < 50 {
		t.Errorf("%d files: %v", files, err)
	}
}
