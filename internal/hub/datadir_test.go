package hub

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

func TestDataDirRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string) string // returns the data directory
		want    []string
	}{
		"NewerVersion": {
			func(t *testing.T, dir string) string {
				t.Helper()
				write(t, filepath.Join(dir, "VERSION"), "99\n")
				return dir
			},
			[]string{"newer", "--data-dir"},
		},
		"VersionIsNone": {
			func(t *testing.T, dir string) string {
				t.Helper()
				write(t, filepath.Join(dir, "VERSION"), "blue")
				return dir
			},
			[]string{"VERSION", "blue"},
		},
		"SomebodyElses": {
			func(t *testing.T, dir string) string {
				t.Helper()
				write(t, filepath.Join(dir, "thesis.tex"), "")
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				return dir
			},
			[]string{"--data-dir", "chmod 700"},
		},
		"BelowAFile": {
			func(t *testing.T, dir string) string {
				t.Helper()
				write(t, filepath.Join(dir, "file"), "")
				return filepath.Join(dir, "file", "hub")
			},
			[]string{"file/hub"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := c.prepare(t, parent)
			before := tree(t, parent)
			_, err := Start(t.Context(), embedded(dir), logr.Discard())
			if err == nil {
				t.Fatal("it started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want an error that has %q, got: %v", want, err)
				}
			}
			if diff := cmp.Diff(before, tree(t, parent)); diff != "" {
				t.Errorf("the refusal touched something: %s", diff)
			}
		})
	}
}

func TestDataDirIsPrivate(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := dataDir(dir).open()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fs.FileMode(0o700), info.Mode().Perm()); diff != "" {
		t.Error(diff)
	}
}

// TestWriteFileFails: a write that fails keeps the old content and leaves no other file.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.MkdirAll(filepath.Join(path, "not-empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	if err := writeFile(path, []byte("x")); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("want an error that names the file, got: %v", err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tree returns the mode of every file and directory, and the content of each file, by path.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files[path] = info.Mode().String()
		if !e.IsDir() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files[path] += " " + string(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
