package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

// orrery runs the binary and returns what it printed and its exit code.
func orrery(t testing.TB, args ...string) (string, int) {
	t.Helper()
	out, err := exec.Command(orreryBinary(), args...).CombinedOutput()
	if err == nil {
		return string(out), 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("orrery %s: %v", strings.Join(args, " "), err)
	}
	return string(out), exit.ExitCode()
}

// TestJoinAndUnjoin joins an API server that the demo knows nothing of.
func TestJoinAndUnjoin(t *testing.T) {
	server := testenv.StartServer(t)
	file := filepath.Join(t.TempDir(), "mine.kubeconfig")
	if err := os.WriteFile(file, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := orrery(t, "cluster", "join", "mine", "--cluster-kubeconfig", file, "--region", "eu-west-1", "--labels", "env=dev")
	if code != 0 {
		t.Fatalf("join: %s", out)
	}
	t.Cleanup(func() { orrery(t, "cluster", "unjoin", "mine") })

	// The kubeconfig has a context for it at once.
	kubectl(t, "mine", "get", "namespaces")

	// The same cluster under another name, and the hub itself, are refused.
	if out, code := orrery(t, "cluster", "join", "other", "--cluster-kubeconfig", file); code == 0 || !strings.Contains(out, "mine") {
		t.Errorf("joining a cluster twice: exit code %d, want a refusal that names cluster mine:\n%s", code, out)
	}
	if out, code := orrery(t, "cluster", "join", "hub", "--cluster-kubeconfig", filepath.Join(dataDir, "kubeconfig"), "--cluster-context", "hub"); code == 0 || !strings.Contains(out, "hub itself") {
		t.Errorf("joining the hub: exit code %d, want a refusal:\n%s", code, out)
	}

	ns := namespace(t, "join")
	apply(t, "hub", strings.ReplaceAll(configMapPolicy(ns), "spec:", "spec:\n  placement: {clusterAffinity: {clusterNames: [mine]}}"))
	apply(t, "hub", configMaps(0, 3, ns))
	eventually(t, deadline, func() string {
		if n, err := countPlaced("mine", ns); err != nil || n != 3 {
			return "waiting for the objects in the new cluster"
		}
		return ""
	})
	if out, code := orrery(t, "cluster", "unjoin", "mine"); code != 0 {
		t.Fatalf("unjoin: %s", out)
	}
	// What was placed keeps running, without our marks.
	cmd := exec.Command(testenv.KubeBinary(), "kubectl", "--kubeconfig", file, "get", "configmaps", "-n", ns, "-o", "yaml")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if n := strings.Count(string(text), "name: c00"); n != 3 {
		t.Errorf("%d of 3 objects are left after unjoin:\n%s", n, text)
	}
	if strings.Contains(string(text), "work.orrery.dev/binding") {
		t.Errorf("marks are left after unjoin:\n%s", text)
	}
}
