package lab

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/test/lab/site"
)

// TestOneHost creates a cluster on one host that also joins the hub, runs workloads on it,
// partly by policy, applies again without changes, and deletes it. Then the host is as before.
func TestOneHost(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 1)
	h := s.Host("host-1")
	file := s.File(site.Layout{Hosts: []*lab.Host{h}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	before := s.snapshot(h)

	s.Orrery("cluster", "preflight", "-f", file)
	s.wantAs(map[string]lab.Snapshot{h.Name: before})
	planned := s.Orrery("cluster", "plan", "-f", file)
	if !strings.Contains(planned, "orrery-kubelet") {
		t.Errorf("the plan does not name the unit of the kubelet:\n%s", planned)
	}
	s.wantAs(map[string]lab.Snapshot{h.Name: before})
	hub, _ := s.StartHub()
	s.Orrery("cluster", "create", "-f", file, "--yes", "--join", "--kubeconfig", hub)
	s.wantNodes("host-1")
	s.serves(1)
	s.PlacedOn(hub)
	s.Eventually("kubectl get cluster shows that it is ready", func(context.Context) error {
		out, err := s.Hubctl(hub, "", "get", "cluster", "oak")
		if err == nil && !strings.Contains(out, "True") {
			err = errors.New(out)
		}
		return err
	})

	applied := s.snapshot(h)
	s.Orrery("cluster", "apply", "-f", file, "--yes")
	if d := filesOnly(lab.Diff(applied, s.snapshot(h))); d != "" {
		t.Errorf("an apply with nothing to do changed the host:\n%s", d)
	}
	out := s.Orrery("cluster", "plan", "-f", file)
	if strings.Contains(out, "orrery-kubelet") {
		t.Errorf("there is still something to do:\n%s", out)
	}

	// After a power failure and a boot, everything runs again without help.
	h.Kill()
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the node is ready after a loss of power", func(ctx context.Context) error {
		_, err := s.Client(nil).CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})

	if out, err := s.Try("cluster", "delete", "oak"); err == nil {
		t.Errorf("delete did not ask:\n%s", out)
	}
	s.Orrery("cluster", "delete", "oak", "--yes")
	s.wantAs(map[string]lab.Snapshot{h.Name: before})
	if _, err := os.Stat(s.Kubeconfig()); err == nil {
		t.Error("the kubeconfig is left")
	}
}

// filesOnly keeps the files of a difference that a running cluster does not change. It drops
// all processes, because probes start and end at any time.
func filesOnly(diff string) string {
	var kept []string
	for line := range strings.Lines(diff) {
		words := strings.Fields(line) // sign, kind, path
		for _, ours := range []string{"/etc/", "/opt/", "/usr/"} {
			if words[1] == "file" && strings.HasPrefix(words[2], ours) {
				kept = append(kept, line)
			}
		}
	}
	return strings.Join(kept, "")
}
