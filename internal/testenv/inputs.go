package testenv

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Page makes Go's cache of a test's result depend on the page of the console. Each test that opens
// the page in a browser must call it, because Programs does not cover the page. hack/digests.sh
// sets ORRERY_PAGE to the digest of the page.
func Page() { _ = os.Getenv("ORRERY_PAGE") }

// Inputs makes Go's cache of a test's result depend on files of the project. A test needs this for
// files that are read by programs that it runs, such as a script of hack. Paths are relative to the
// root of the project. A directory stands for all files in it.
func Inputs(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(Root(), path), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			_, err = os.Stat(path) // Go's cache records this call
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
