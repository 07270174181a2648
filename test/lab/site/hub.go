package site

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/testenv"
)

// StartHub starts orrery server with additional flags. It returns the path of its kubeconfig,
// and a function that kills it with SIGKILL.
func (s *Site) StartHub(flags ...string) (kubeconfig string, kill func()) {
	s.T.Helper()
	dir := filepath.Join(s.Dir, "hub")
	ready := filepath.Join(s.Dir, "ready")
	cmd := testenv.Program(context.WithoutCancel(s.T.Context()), filepath.Join(testenv.Root(), "bin", "orrery"), append([]string{
		"server", "--data-dir", dir, "--secure-port", "0", "--unsafe-no-fsync", "--ready-file", ready,
		"--lifecycle-catalog", s.Catalog, "--lifecycle-cache", s.cache,
	}, flags...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := os.RemoveAll(ready); err != nil {
		s.T.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.T.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if s.T.Failed() {
			s.T.Logf("the end of the hub's log:\n%s", log.String()[max(0, log.Len()-8192):])
		}
	})
	s.Eventually("the hub is ready", func(context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			s.T.Fatalf("the hub has ended: %v\n%s", err, log.String())
		default:
		}
		_, err := os.Stat(ready)
		return err
	})
	kill = func() {
		cmd.Process.Kill()
		ended <- <-ended
	}
	return filepath.Join(dir, "kubeconfig"), kill
}

// Hubctl runs kubectl on the hub.
func (s *Site) Hubctl(kubeconfig, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.T.Context(), testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", kubeconfig, "--context", "hub"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// MustHubctl runs kubectl on the hub. It must succeed.
func (s *Site) MustHubctl(kubeconfig, stdin string, args ...string) string {
	s.T.Helper()
	return s.answered("kubectl at the hub", func() (string, error) { return s.Hubctl(kubeconfig, stdin, args...) })
}

const placed = `
apiVersion: v1
kind: ConfigMap
metadata: {name: greeting, namespace: default}
data: {text: hello}
---
apiVersion: policy.orrery.dev/v1alpha1
kind: PropagationPolicy
metadata: {name: greeting, namespace: default}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap, name: greeting}]
  placement: {clusterAffinity: {clusterNames: [oak]}}
`

// PlacedOn checks that a policy can place a workload in the cluster.
func (s *Site) PlacedOn(hub string) {
	s.T.Helper()
	s.MustHubctl(hub, "", "wait", "--for=condition=Ready", "cluster/oak", "--timeout=20m")
	s.MustHubctl(hub, placed, "apply", "-f", "-")
	s.Eventually("the ConfigMap is in the cluster", func(context.Context) error {
		cmd := exec.CommandContext(s.T.Context(), testenv.KubeBinary(), "kubectl", "--kubeconfig", hub, "--context", "oak", "get", "configmap", "greeting", "-n", "default")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// FreeAddress returns an unused address of the machine on the hosts' network.
func (s *Site) FreeAddress() string {
	s.T.Helper()
	address := s.Subnet().Addr().Next().String()
	port, err := process.ReservePort(address, 0)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { port.Release() })
	return net.JoinHostPort(address, strconv.Itoa(port.Number))
}
