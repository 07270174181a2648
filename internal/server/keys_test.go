package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
)

// TestMirrorKeys: keys are created once, and only their owner may read the file. A file that
// others may read, or that has no key, is refused. No message contains a key.
func TestMirrorKeys(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	dir := t.TempDir()
	file := filepath.Join(dir, "mirror-encryption.key")
	made, err := mirrorKeys("", dir, log)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v; want a file of mode 0600", info, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(string(text))
	if len(logged) != 1 || !strings.Contains(logged[0], file) || strings.Contains(logged[0], key) {
		t.Errorf("logged %q, want where the key is, and not the key", logged)
	}
	sealed, err := made.Seal([]byte("data"), "place")
	if err != nil {
		t.Fatal(err)
	}
	again, err := mirrorKeys("", dir, log)
	if err != nil || len(logged) != 1 {
		t.Fatalf("a second start: %v, logged %q", err, logged)
	}
	if opened, err := again.Open(sealed, "place"); err != nil || string(opened) != "data" {
		t.Errorf("after a restart: %q, %v", opened, err)
	}

	for name, c := range map[string]struct {
		mode    os.FileMode
		content string
		says    string
	}{
		"ReadableByOthers": {0o640, key, "chmod 600 "},
		"Empty":            {0o600, "", ""},
		"Garbage":          {0o600, key[:len(key)-4], ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(file, []byte(c.content), c.mode); err != nil {
				t.Fatal(err)
			}
			_, err := mirrorKeys(file, dir, log)
			if err == nil || !strings.Contains(err.Error(), "--mirror-encryption-key-file") || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v, want an error with the flag, the file and %q", err, c.says)
			}
			if c.content != "" && strings.Contains(err.Error(), c.content) {
				t.Errorf("the error has a key: %v", err)
			}
		})
	}
}
