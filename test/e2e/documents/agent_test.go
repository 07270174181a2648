package documents

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/e2e/demo"
)

// TestJoinByAgent follows docs/operating.md for a join by agent, with an API server that is not
// part of the demo. No pod runs there: a process replaces the pods of the manifest.
func TestJoinByAgent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "### Join by agent")
	_, block, _ := strings.Cut(section, "```console\n")
	block, _, _ = strings.Cut(block, "```")
	var script strings.Builder
	for line := range strings.Lines(block) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			script.WriteString(command)
		}
	}
	const name = "ash"
	if strings.Count(script.String(), name) < 4 {
		t.Fatalf("the page does not join cluster %s:\n%s", name, script.String())
	}

	server := testenv.StartServer(t)
	dir := t.TempDir()
	config, err := clientcmd.Load(server.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[name] = config.Contexts[config.CurrentContext]
	config.CurrentContext = name
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(filepath.Dir(demo.Orrery()), "orrery-agent-linux-"+runtime.GOARCH)
	for name, target := range map[string]string{"orrery": demo.Orrery(), "kubectl": testenv.KubeBinary()} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	process := testenv.Program(context.Background(), agent, "cluster", "--kubeconfig", file, "--replica", "one")
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	process.Stderr = &log
	runtime.LockOSThread() // the kernel regards the thread as the parent of the process
	defer runtime.UnlockOSThread()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill() })

	cmd := exec.Command("bash", "-euo", "pipefail", "-x", "-c", script.String())
	cmd.Dir = dir
	// The current context is the hub's, from the first file.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+demo.Kubeconfig()+":"+file, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { demo.Run(t, "cluster", "unjoin", name) })
	demo.Kubectl(t, "hub", "wait", "--for=condition=Ready", "cluster/"+name, "--timeout=180s")
	demo.Kubectl(t, name, "get", "deployment", "-n", "orrery-system", "orrery-agent")
	testenv.Eventually(t, "describe the cluster", testenv.Patience, func() error {
		if out, code := demo.Run(t, "cluster", "describe", name); code != 0 || !strings.Contains(out, "1 connected with") || !strings.Contains(out, "env=prod") {
			return errors.New(out)
		}
		return nil
	})
	demo.Unjoin(t, name)
	if err := process.Wait(); err != nil {
		t.Errorf("the agent of a cluster that has left: %v\n%s", err, log.String())
	}
}
