package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/testenv"
)

// TestKubeBinary: the Kubernetes components are in one binary and print their version.
func TestKubeBinary(t *testing.T) {
	t.Parallel()
	module, err := os.ReadFile(filepath.Join(testenv.Root(), "kube", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(module), "k8s.io/kubernetes ")
	version := strings.Fields(rest)[0]
	for component, args := range map[string][]string{
		"kube-apiserver": {"--version"}, "kube-controller-manager": {"--version"}, "kube-scheduler": {"--version"},
		"kubectl": {"version", "--client"},
	} {
		t.Run(component, func(t *testing.T) {
			out, err := exec.Command(testenv.KubeBinary(), append([]string{component}, args...)...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), version) {
				t.Errorf("%v, want %s in: %s", err, version, out)
			}
		})
	}
}

// TestKubeBinaryIsCached: the components are built once for each content of kube/.
func TestKubeBinaryIsCached(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "kube"), os.DirFS(filepath.Join(testenv.Root(), "kube"))); err != nil {
		t.Fatal(err)
	}
	// The fake compiler counts its runs.
	const compiler = `#!/bin/sh
[ "$1" = build ] || exit 0
echo built >> "$BUILDS"
while [ "$1" != -o ]; do shift; done
echo binary > "$2"; chmod 755 "$2"
`
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(compiler), 0o755); err != nil {
		t.Fatal(err)
	}
	builds := filepath.Join(dir, "builds")
	build := func(want int) {
		t.Helper()
		out := filepath.Join(dir, "bin", "orrery-kube")
		cmd := exec.Command(filepath.Join(dir, "kube", "build.sh"), out)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "ORRERY_CACHE="+filepath.Join(dir, "cache"), "BUILDS="+builds)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		text, err := os.ReadFile(builds)
		if n := strings.Count(string(text), "built"); err != nil || n != want {
			t.Errorf("built %d times, want %d: %v", n, want, err)
		}
		if text, err := os.ReadFile(out); err != nil || string(text) != "binary\n" {
			t.Errorf("%q, %v", text, err)
		}
	}
	build(1)
	build(1)
	if err := os.RemoveAll(filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	build(1)
	for i, name := range []string{"go.mod", "main.go"} {
		f, err := os.OpenFile(filepath.Join(dir, "kube", name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(f, "// changed"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		build(2 + i)
	}
}
