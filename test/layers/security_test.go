package layers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityIsHeld: each line of the threat model names tests, and these exist.
func TestSecurityIsHeld(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z]+)`")
	lines := 0
	for line := range strings.SplitSeq(string(text), "\n") {
		tests := named.FindAllStringSubmatch(line, -1)
		if strings.Count(line, "|") != 4 || strings.HasPrefix(line, "| tries ") || strings.HasPrefix(line, "|---") {
			continue
		}
		lines++
		if len(tests) == 0 {
			t.Errorf("no test holds: %s", line)
		}
		for _, test := range tests {
			if !declares(t, filepath.Join("../..", test[1]), "func "+test[2]+"(") {
				t.Errorf("package %s has no %s", test[1], test[2])
			}
		}
	}
	if lines == 0 {
		t.Error("docs/security.md has no threat model")
	}
}

// declares reports whether a test file of the directory has a line with that beginning.
func declares(t *testing.T, dir, declaration string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(source), "\n"+declaration) {
			return true
		}
	}
	return false
}
