package testenv

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Page must be called by each test that opens the console's page in a browser: Programs does not
// cover the page. hack/digests.sh sets ORRERY_PAGE to its digest.
func Page() { _ = os.Getenv("ORRERY_PAGE") }

// Inputs has Go's cache of test results depend on files of the project that a program reads which
// the test runs, such as a script of hack. Paths begin at the root of the project; of a directory
// all files count.
func Inputs(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(Root(), path), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			_, err = os.Stat(path) // which Go's cache notes
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
