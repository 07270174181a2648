package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/test/lab/site"
)

// onHub converts the file of a cluster into the manifests for a hub. The key is in a Secret.
func (s *testbed) onHub(file string, h *lab.Host) string {
	s.T.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		s.T.Fatal(err)
	}
	return strings.ReplaceAll(string(content), "privateKeyPath: "+h.SSH().KeyFile, "secretRef: {namespace: orrery-cluster, name: hosts}")
}

// TestClusterObject builds a cluster by applying a Cluster to the hub, only with kubectl, while
// the hub is killed once. The cluster joins by agents, whose image is built on its host. The
// deletion of the object removes the cluster from the hosts.
func TestClusterObject(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 1)
	h := s.Host("host-1")
	before := s.snapshot(h)
	listener := s.FreeAddress()
	listens := []string{"--public-address", listener, "--public-url", "https://" + listener}
	hub, kill := s.StartHub(listens...)
	key, err := os.ReadFile(h.SSH().KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Dir, "ssh-privatekey")
	if err := os.WriteFile(path, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Hubctl(hub, "", "create", "namespace", "orrery-cluster"); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
	file := s.File(site.Layout{
		Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}, Extra: "    join: Pull\n    deletionPolicy: Delete\n",
	})
	// A Cluster with the key in it is refused.
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Eventually("a Cluster with credentials is refused", func(context.Context) error {
		_, err := s.Hubctl(hub, string(content), "apply", "-f", "-")
		if err == nil {
			t.Fatal("a Cluster with credentials was accepted")
		}
		if !strings.Contains(err.Error(), "secretRef") {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	})
	hostKey, err := h.HostKey()
	if err != nil {
		t.Fatal(err)
	}
	// An answer that was lost is asked for again.
	if _, err := s.Hubctl(hub, "", "create", "secret", "generic", "hosts", "-n", "orrery-cluster", "--from-file", path,
		"--from-literal", "known_hosts="+h.SSH().Address+" "+hostKey); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
	s.MustHubctl(hub, "", "annotate", "secret", "hosts", "-n", "orrery-cluster", "cluster.orrery.dev/for-cluster=oak")
	s.MustHubctl(hub, s.onHub(file, h), "apply", "-f", "-")
	s.Eventually("the operation is there", func(context.Context) error {
		_, err := s.Hubctl(hub, "", "get", "operation", "oak-1")
		return err
	})
	s.MustHubctl(hub, "", "wait", "--for=jsonpath={.status.steps[?(@.id=='etcd/unit')].state}=Changed", "operation/oak-1", "--timeout=20m")
	kill()
	hub, _ = s.StartHub(listens...)
	s.MustHubctl(hub, "", "wait", "--for=condition=Provisioned", "cluster/oak", "--timeout=20m")
	s.MustHubctl(hub, "", "wait", "--for=condition=AgentConnected", "cluster/oak", "--timeout=20m")
	s.PlacedOn(hub)
	s.MustHubctl(hub, "", "--context", "oak", "rollout", "status", "deployment/orrery-agent", "-n", "orrery-system", "--timeout=20m")
	if out := s.MustHubctl(hub, "", "--context", "oak", "exec", "deployment/orrery-agent", "-n", "orrery-system", "--", "/orrery-agent", "--help"); !strings.Contains(out, "cluster joined") {
		t.Errorf("exec in an agent, by an agent: %q", out)
	}
	status := s.MustHubctl(hub, "", "get", "cluster", "oak", "-o", "jsonpath={.status.provision}")
	for _, want := range []string{"v1.36.3", "host-1", "flannel"} {
		if !strings.Contains(status, want) {
			t.Errorf("status.provision lacks %s: %s", want, status)
		}
	}
	if out := s.MustHubctl(hub, "", "get", "operations"); !strings.Contains(out, "Succeeded") {
		t.Errorf("kubectl get operations:\n%s", out)
	}
	all := s.MustHubctl(hub, "", "get", "clusters,operations,events", "-A", "-o", "yaml")
	if strings.Contains(all, strings.Split(string(key), "\n")[1]) {
		t.Error("the private key is in an object that is no Secret")
	}

	s.MustHubctl(hub, "", "delete", "cluster", "oak", "--wait=false")
	s.MustHubctl(hub, "", "wait", "--for=delete", "cluster/oak", "--timeout=10m")
	s.Eventually("the hub has no credentials of it", func(context.Context) error {
		secrets, err := s.Hubctl(hub, "", "get", "secrets", "-n", "orrery-cluster", "-o", "name")
		if strings.Contains(secrets, "/oak") {
			err = fmt.Errorf("there are %s", secrets)
		}
		return err
	})
	s.wantAs(map[string]lab.Snapshot{h.Name: before})
}
