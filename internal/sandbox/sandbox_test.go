package sandbox

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestPorts(t *testing.T) {
	dir := t.TempDir()
	addresses := func() map[string]string {
		t.Helper()
		c, err := Prepare(dir, "kube", APIOnly, "oak", "pine")
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, one := range c.List() {
			cfg, err := one.Config()
			if err != nil {
				t.Fatal(err)
			}
			found[one.Name] = cfg.Host
			if serves := strings.Join(c.Processes()[len(found)].Command, " "); !strings.Contains(serves, "--secure-port="+strings.TrimPrefix(cfg.Host, "https://127.0.0.1:")) {
				t.Errorf("%s serves elsewhere than its kubeconfig says, %s: %s", one.Name, cfg.Host, serves)
			}
		}
		return found
	}
	first := addresses()
	if again := addresses(); again["oak"] != first["oak"] || again["pine"] != first["pine"] {
		t.Errorf("addresses changed from %v to %v", first, again)
	}

	// The same port twice, as an earlier version could draw it.
	oak, err := os.ReadFile(filepath.Join(dir, "oak", "port"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "pine", "port"), oak, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	apart := addresses()
	if apart["oak"] != first["oak"] || apart["pine"] == apart["oak"] {
		t.Errorf("addresses %v, want oak's as before and another for pine", apart)
	}

	// Somebody else took oak's.
	port, err := strconv.Atoi(string(oak))
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if moved := addresses(); moved["oak"] == first["oak"] || moved["pine"] != apart["pine"] {
		t.Errorf("addresses %v, want another for oak alone than in %v", moved, apart)
	}
}

// TestNoMemoryLimit keeps a limit away that a few large CRDs exceed: there is nothing but garbage collection then.
func TestNoMemoryLimit(t *testing.T) {
	c, err := Prepare(t.TempDir(), "kube", Simulated, "oak")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Processes() {
		if limit, ok := p.Env["GOMEMLIMIT"]; ok {
			t.Errorf("%s has GOMEMLIMIT=%s", p.Name, limit)
		}
	}
}
