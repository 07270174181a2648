package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestForwardingIsDocumented checks that the table of docs/security.md has each package that
// forwards requests of users, with the test that bounds the paths.
func TestForwardingIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Requests with the hub's own credentials\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := 0
	err = filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(code), "httputil.ReverseProxy{") {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../")
		if dir == "internal/testenv" {
			return nil // of tests
		}
		found++
		if !strings.Contains(section, "`"+dir+"`") || !strings.Contains(section, "`"+dir+".Test") {
			t.Errorf("%s forwards requests, and the table of docs/security.md has no row with its package and its test", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Error("no package forwards requests: the test looks for the wrong text")
	}
}
