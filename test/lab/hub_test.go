package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/testenv"
)

// startHub starts orrery server, with further flags, and returns the path of its kubeconfig, and what kills it with SIGKILL.
func (s *site) startHub(flags ...string) (kubeconfig string, kill func()) {
	s.t.Helper()
	dir := filepath.Join(s.dir, "hub")
	ready := filepath.Join(s.dir, "ready")
	cmd := exec.CommandContext(context.WithoutCancel(s.t.Context()), filepath.Join(testenv.Root(), "bin", "orrery"), append([]string{
		"server", "--data-dir", dir, "--secure-port", "0", "--unsafe-no-fsync", "--ready-file", ready,
		"--lifecycle-catalog", s.catalog, "--lifecycle-cache", s.cache,
	}, flags...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := os.RemoveAll(ready); err != nil {
		s.t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if s.t.Failed() {
			s.t.Logf("the end of the hub's log:\n%s", log.String()[max(0, log.Len()-8192):])
		}
	})
	s.eventually("the hub is ready", func(context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			s.t.Fatalf("the hub has ended: %v\n%s", err, log.String())
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

// hubctl runs kubectl on the hub.
func (s *site) hubctl(kubeconfig, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), testenv.KubeBinary(), append([]string{"kubectl", "--kubeconfig", kubeconfig, "--context", "hub"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (s *site) mustHubctl(kubeconfig, stdin string, args ...string) string {
	s.t.Helper()
	out, err := s.hubctl(kubeconfig, stdin, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// onHub turns the file of a cluster into what the hub takes: the key is in a Secret.
func (s *site) onHub(file string, h *lab.Host) string {
	s.t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.ReplaceAll(string(content), "privateKeyPath: "+h.SSH().KeyFile, "secretRef: {namespace: orrery-cluster, name: hosts}")
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

// placedOn checks that the cluster takes a workload by policy.
func (s *site) placedOn(hub string) {
	s.t.Helper()
	s.mustHubctl(hub, "", "wait", "--for=condition=Ready", "cluster/oak", "--timeout=180s")
	s.mustHubctl(hub, placed, "apply", "-f", "-")
	s.eventually("the ConfigMap is in the cluster", func(context.Context) error {
		cmd := exec.CommandContext(s.t.Context(), testenv.KubeBinary(), "kubectl", "--kubeconfig", hub, "--context", "oak", "get", "configmap", "greeting", "-n", "default")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// TestClusterObject builds a cluster by applying a Cluster to the hub, with nothing but kubectl, while the hub is killed once. It joins by agents whose
// image its host has made. Deleting the object takes it off the hosts.
func TestClusterObject(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1)
	h := s.Host("host-1")
	before := s.snapshot(h)
	listener := s.freeAddress()
	listens := []string{"--public-address", listener, "--public-url", "https://" + listener}
	hub, kill := s.startHub(listens...)
	key, err := os.ReadFile(h.SSH().KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, "ssh-privatekey")
	if err := os.WriteFile(path, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.hubctl(hub, "", "create", "namespace", "orrery-cluster"); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
	file := s.file(layout{
		Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}, Extra: "    join: Pull\n    deletionPolicy: Delete\n",
	})
	// With the key in the object it is refused.
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.hubctl(hub, string(content), "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "secretRef") {
		t.Errorf("a Cluster with credentials: %v", err)
	}
	hostKey, err := h.HostKey()
	if err != nil {
		t.Fatal(err)
	}
	s.mustHubctl(hub, "", "create", "secret", "generic", "hosts", "-n", "orrery-cluster", "--from-file", path,
		"--from-literal", "known_hosts="+h.SSH().Address+" "+hostKey)
	s.mustHubctl(hub, "", "annotate", "secret", "hosts", "-n", "orrery-cluster", "cluster.orrery.dev/for-cluster=oak")
	s.mustHubctl(hub, s.onHub(file, h), "apply", "-f", "-")
	s.eventually("the operation is there", func(context.Context) error {
		_, err := s.hubctl(hub, "", "get", "operation", "oak-1")
		return err
	})
	s.mustHubctl(hub, "", "wait", "--for=jsonpath={.status.steps[?(@.id=='etcd/unit')].state}=Changed", "operation/oak-1", "--timeout=120s")
	kill()
	hub, _ = s.startHub(listens...)
	s.mustHubctl(hub, "", "wait", "--for=condition=Provisioned", "cluster/oak", "--timeout=180s")
	s.mustHubctl(hub, "", "wait", "--for=condition=AgentConnected", "cluster/oak", "--timeout=180s")
	s.placedOn(hub)
	s.mustHubctl(hub, "", "--context", "oak", "rollout", "status", "deployment/orrery-agent", "-n", "orrery-system", "--timeout=120s")
	if out := s.mustHubctl(hub, "", "--context", "oak", "exec", "deployment/orrery-agent", "-n", "orrery-system", "--", "/orrery-agent", "--help"); !strings.Contains(out, "cluster joined") {
		t.Errorf("exec in an agent, by an agent: %q", out)
	}
	status := s.mustHubctl(hub, "", "get", "cluster", "oak", "-o", "jsonpath={.status.provision}")
	for _, want := range []string{"v1.36.3", "host-1", "flannel"} {
		if !strings.Contains(status, want) {
			t.Errorf("status.provision lacks %s: %s", want, status)
		}
	}
	if out := s.mustHubctl(hub, "", "get", "operations"); !strings.Contains(out, "Succeeded") {
		t.Errorf("kubectl get operations:\n%s", out)
	}
	all := s.mustHubctl(hub, "", "get", "clusters,operations,events", "-A", "-o", "yaml")
	if strings.Contains(all, strings.Split(string(key), "\n")[1]) {
		t.Error("the private key is in an object that is no Secret")
	}

	s.mustHubctl(hub, "", "delete", "cluster", "oak", "--wait=false")
	s.mustHubctl(hub, "", "wait", "--for=delete", "cluster/oak", "--timeout="+(3*time.Minute).String())
	s.eventually("the hub has no credentials of it", func(context.Context) error {
		secrets, err := s.hubctl(hub, "", "get", "secrets", "-n", "orrery-cluster", "-o", "name")
		if strings.Contains(secrets, "/oak") {
			err = fmt.Errorf("there are %s", secrets)
		}
		return err
	})
	if d := lab.Diff(before, s.snapshot(h)); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
}
