package lab

import (
	"context"
	"os"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/test/lab/site"
)

// TestOneHost creates a cluster on one host that joins the hub by itself, runs workloads on it,
// also by policy, applies again with nothing to do, and deletes it: the host is as it was.
func TestOneHost(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 1)
	h := s.Host("host-1")
	file := s.File(site.Layout{Hosts: []*lab.Host{h}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	before := s.snapshot(h)

	s.Orrery("cluster", "preflight", "-f", file)
	if d := lab.Diff(before, s.snapshot(h)); d != "" {
		t.Errorf("preflight changed the host:\n%s", d)
	}
	planned := s.Orrery("cluster", "plan", "-f", file)
	if !strings.Contains(planned, "orrery-kubelet") {
		t.Errorf("the plan does not name the unit of the kubelet:\n%s", planned)
	}
	if d := lab.Diff(before, s.snapshot(h)); d != "" {
		t.Errorf("plan changed the host:\n%s", d)
	}
	hub, _ := s.StartHub()
	s.Orrery("cluster", "create", "-f", file, "--yes", "--join", "--kubeconfig", hub)
	ready, err := readyNodes(t.Context(), s.Client(nil))
	if err != nil || len(ready) != 1 {
		t.Fatalf("ready nodes %v: %v", ready, err)
	}
	s.serves(1)
	s.PlacedOn(hub)
	if out := s.MustHubctl(hub, "", "get", "cluster", "oak"); !strings.Contains(out, "True") {
		t.Errorf("kubectl get cluster:\n%s", out)
	}

	applied := s.snapshot(h)
	s.Orrery("cluster", "apply", "-f", file, "--yes")
	if d := filesOnly(lab.Diff(applied, s.snapshot(h))); d != "" {
		t.Errorf("an apply with nothing to do changed the host:\n%s", d)
	}
	out := s.Orrery("cluster", "plan", "-f", file)
	if strings.Contains(out, "orrery-kubelet") {
		t.Errorf("there is still something to do:\n%s", out)
	}

	// The power fails: after the boot everything comes back by itself.
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
	if d := lab.Diff(before, s.snapshot(h)); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	if _, err := os.Stat(s.Kubeconfig()); err == nil {
		t.Error("the kubeconfig is left")
	}
}

// filesOnly keeps of a difference the files that a running cluster does not change by itself.
// Processes are none, wherever their programs are: probes start and end at any time.
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
