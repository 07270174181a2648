package sandbox

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"orrery.dev/orrery/internal/process"
)

func TestPorts(t *testing.T) {
	dir := t.TempDir()
	addresses := func() map[string]string {
		t.Helper()
		c, err := Prepare(Options{Dir: dir, KubeBinary: "kube"}, "oak", "pine")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
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

	// Both clusters have the same port in their file, as an earlier version could choose it.
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

	// Another process has reserved oak's port, and does not listen yet.
	port, err := strconv.Atoi(string(oak))
	if err != nil {
		t.Fatal(err)
	}
	taken, err := process.ReservePort(loopback, port)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	moved := addresses()
	if moved["oak"] == first["oak"] || moved["pine"] != apart["pine"] {
		t.Errorf("addresses %v, want another for oak alone than in %v", moved, apart)
	}

	// A process without reservation listens on pine's port.
	listener, err := net.Listen("tcp", strings.TrimPrefix(moved["pine"], "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if again := addresses(); again["oak"] != moved["oak"] || again["pine"] == moved["pine"] {
		t.Errorf("addresses %v, want another for pine alone than in %v", again, moved)
	}
}

// TestPortsStayReserved: the port of a cluster stays reserved until Close, even if its API
// server does not run.
func TestPortsStayReserved(t *testing.T) {
	dir := t.TempDir()
	c, err := Prepare(Options{Dir: dir, KubeBinary: "kube"}, "oak")
	if err != nil {
		t.Fatal(err)
	}
	number := c.List()[0].port.Number
	if _, err := process.ReservePort(loopback, number); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("it is reserved twice: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := process.ReservePort(loopback, number)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
}

// TestGOGC: the processes of a demo use little memory by default. Option GOGC exchanges memory
// for a faster start.
func TestGOGC(t *testing.T) {
	for want, o := range map[string]Options{"50": {Tier: Simulated}, "400": {Tier: Simulated, GOGC: 400}} {
		o.Dir, o.KubeBinary = t.TempDir(), "kube"
		c, err := Prepare(o, "oak")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, p := range c.Processes() {
			if p.Env["GOGC"] != want {
				t.Errorf("%s has GOGC=%s, want %s", p.Name, p.Env["GOGC"], want)
			}
		}
	}
}

// TestNoMemoryLimit: no process has a GOMEMLIMIT. A few large CRDs would exceed the limit, and
// the process would only collect garbage.
func TestNoMemoryLimit(t *testing.T) {
	c, err := Prepare(Options{Dir: t.TempDir(), KubeBinary: "kube", Tier: Simulated}, "oak")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, p := range c.Processes() {
		if limit, ok := p.Env["GOMEMLIMIT"]; ok {
			t.Errorf("%s has GOMEMLIMIT=%s", p.Name, limit)
		}
	}
}
