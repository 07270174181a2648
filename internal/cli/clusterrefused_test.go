package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

const fileOfOak = `apiVersion: cluster.orrery.dev/v1alpha1
kind: Cluster
metadata: {name: oak}
spec:
  provision:
    hosts:
    - {name: h-1, address: 192.0.2.1}
    - {name: h-2, address: 192.0.2.2}
    roleGroups: {control-plane: [h-1], worker: [h-2]}
    kubernetes: {version: v1.36.3}
`

// TestRefusedFiles: each command refuses a file with an error that the file alone shows. It
// leaves no Operation and dials no host.
func TestRefusedFiles(t *testing.T) {
	dir := t.TempDir()
	store := lifecycle.Files(filepath.Join(dir, "state"))
	spec := &clusterv1alpha1.Provision{
		Hosts: []clusterv1alpha1.Host{{Name: "h-1", Address: "192.0.2.1"}, {Name: "h-2", Address: "192.0.2.2"}},
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
			clusterv1alpha1.RoleControlPlane: {"h-1"}, clusterv1alpha1.RoleWorker: {"h-2"},
		},
		Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
	}
	plan.Default("oak", spec)
	if err := store.Save(t.Context(), &lifecycle.State{Cluster: "oak", Specs: intent.Specs{Applied: spec}}); err != nil {
		t.Fatal(err)
	}
	renamed := strings.ReplaceAll(fileOfOak, "h-2", "h-9")
	features := strings.Replace(fileOfOak, "version: v1.36.3", "version: v1.36.3, featureGates: {TTLAfterFinished: true}", 1)
	cases := map[string]struct {
		command, file string
		want          []string
	}{
		"PreflightRenamed": {"preflight", renamed, []string{"the file lacks h-2", "orrery cluster delete-node oak h-2"}},
		"PlanRenamed":      {"plan", renamed, []string{"the file lacks h-2"}},
		"ApplyRenamed":     {"apply", renamed, []string{"the file lacks h-2"}},
		"AddNodeRenamed":   {"add-node", renamed, []string{"host h-9 is at 192.0.2.2, which is host h-2 of the cluster", "Call it h-2"}},
		"ApplyGates":       {"apply", features, []string{"featureGates[TTLAfterFinished]", "is no feature gate of Kubernetes v1.36"}},
		"PreflightGates":   {"preflight", features, []string{"featureGates[TTLAfterFinished]"}},
		"AddNodeInvalid": {
			"add-node", strings.NewReplacer("- {name: h-2", "- {name: h-0, address: 192.0.2.5, port: 70000}\n    - {name: h-2", "worker: [h-2]", "worker: [h-2, h-0]").Replace(fileOfOak),
			[]string{"spec.provision.hosts[h-0].port"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "oak.yaml")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"cluster", c.command, "-f", file, "--state-dir", string(store)}
			if c.command == "apply" || c.command == "add-node" {
				args = append(args, "--yes")
			}
			var out, errOut bytes.Buffer
			if code := Main(args, strings.NewReader(""), &out, &errOut); code != 1 {
				t.Errorf("exit code %d", code)
			}
			for _, want := range c.want {
				if !strings.Contains(errOut.String(), want) {
					t.Errorf("it says %q, want %q", errOut.String(), want)
				}
			}
			if strings.Contains(errOut.String(), "operation oak-") {
				t.Errorf("it names an Operation: %s", errOut.String())
			}
			if ops, err := store.Operations(t.Context(), "oak"); err != nil || len(ops) > 0 {
				t.Errorf("%d Operations, %v", len(ops), err)
			}
		})
	}
}
