package unit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSystemdStartsWithItsData: while the file Established exists, systemd does not start a unit
// without its data, and a unit that runs does not notice the file.
func TestSystemdStartsWithItsData(t *testing.T) {
	m := boot(t)
	h := m.host()
	u := h.unit("orrery-data", roleDump)
	u.Mounts, u.Data, u.Established = []string{"/var/lib/etcd"}, "/var/lib/etcd/member/wal/*.wal", "/etc/etcd.env"
	u.Env = map[string]string{"STATE": "new"}
	write := func(path, content string) {
		t.Helper()
		path = filepath.Join(m.root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := h.run(t, u)
	h.waitLog(t, u.Name, `"STATE=new"`)
	write("var/lib/etcd/member/wal/0.wal", "data")
	write("etc/etcd.env", "# there are data\nSTATE=existing\n")
	t.Cleanup(func() { os.Remove(filepath.Join(m.root, "etc/etcd.env")) })
	if s := h.status(t, u.Name); s.PID != first.PID || s.DefinitionHash != Hash(u) {
		t.Errorf("with data: got %+v, want PID %d as before", s, first.PID)
	}
	h.restart(t, u.Name)
	h.waitLog(t, u.Name, `"STATE=existing"`)

	if err := os.RemoveAll(filepath.Join(m.root, "var/lib/etcd")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, systemd shows the result of the first until it has tried again
		err := h.Restart(t.Context(), u.Name)
		if err == nil || !strings.Contains(err.Error(), "its data are missing") {
			t.Errorf("without data: got %v", err)
		}
		if s := h.status(t, u.Name); s.Running {
			t.Errorf("without data: got %+v, want it not to run", s)
		}
	}
	write("var/lib/etcd/member/wal/0.wal", "data")
	h.restart(t, u.Name)
}
