package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/server"
)

// TestMirrorDSNFile: an unusable file is refused before anything starts. The error does not
// show the content of the file.
func TestMirrorDSNFile(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, []byte("postgres://u:secret@h/d"), 0o644); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(dir, "wrong")
	if err := os.WriteFile(wrong, []byte("u:secret@h/d"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ file, want string }{
		"Missing":   {filepath.Join(dir, "none"), "no such file"},
		"Directory": {dir, "must be a file"},
		"Readable":  {open, "chmod 600 " + open},
		"NoDSN":     {wrong, "postgres://USER:PASSWORD@"},
	} {
		t.Run(name, func(t *testing.T) {
			err := server.Run(t.Context(), server.Options{MirrorDSNFile: tc.file}, logr.Discard(), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
