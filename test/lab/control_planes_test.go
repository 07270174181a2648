package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/lab/site"
)

// TestThreeControlPlanes replaces all certificates by expired ones, loses a control plane
// permanently, replaces it, and adds and removes a worker that runs a workload.
func TestThreeControlPlanes(t *testing.T) {
	t.Parallel()
	testenv.Rotate(t, 2, "TestFiveHosts", "TestThreeControlPlanes")
	s := newTestbed(t, 5)
	controlPlanes := []string{"host-1", "host-2", "host-3"}
	workers := []string{"host-4", "host-5"}
	file := s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: controlPlanes, Worker: workers, Timeout: 20})
	s.Orrery("cluster", "create", "-f", file, "--yes")
	s.wantNodes("host-1", "host-2", "host-3", "host-4", "host-5")
	s.renewsWhatExpired(file, s.Hosts())
	s.serves(2)
	s.wantNodes("host-1", "host-2", "host-3", "host-4", "host-5")

	// To remove another control plane now would break the quorum.
	dead := s.Host("host-1")
	dead.Kill()
	alive := s.Client(s.Host("host-2"))
	s.Eventually("another API server answers", func(ctx context.Context) error {
		_, err := alive.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	killed := time.Now()
	s.Eventually("the kubelets reach it by their load balancers", func(ctx context.Context) error {
		for _, name := range workers {
			lease, err := alive.CoordinationV1().Leases("kube-node-lease").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !lease.Spec.RenewTime.After(killed) {
				return fmt.Errorf("node %s has not renewed its lease since", name)
			}
		}
		return nil
	})
	if out, err := s.Try("cluster", "delete-node", "oak", "host-2", "--yes"); err == nil || !strings.Contains(out, "quorum") {
		t.Errorf("a member more was taken from an etcd that has lost one: %v\n%s", err, out)
	}
	if out, err := s.Try("cluster", "delete-node", "oak", "host-1", "--yes"); err == nil || !strings.Contains(out, "--forget-unreachable") {
		t.Errorf("a host that cannot be reached was taken out without being asked to: %v\n%s", err, out)
	}
	s.Orrery("cluster", "delete-node", "oak", "host-1", "--forget-unreachable", "--yes")
	s.wantNodes("host-2", "host-3", "host-4", "host-5")

	// A new host replaces it, and a worker is added.
	var fresh []*lab.Host
	for range 2 {
		h, err := s.AddHost(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fresh = append(fresh, h)
	}
	before := s.snapshot(fresh[1])
	hosts := slices.DeleteFunc(s.Hosts(), func(h *lab.Host) bool { return h == dead })
	file = s.File(site.Layout{
		Hosts: hosts, ControlPlanes: []string{"host-2", "host-3", fresh[0].Name}, Worker: append(workers, fresh[1].Name), Timeout: 20,
	})
	started := s.starts(s.Host("host-2"))
	s.Orrery("cluster", "add-node", "-f", file, "--yes")
	s.wantNodes("host-2", "host-3", "host-4", "host-5", fresh[0].Name, fresh[1].Name)
	if now := s.starts(s.Host("host-2")); now != started {
		t.Errorf("adding hosts restarted something of host-2:\n%s\n%s", started, now)
	}
	s.Eventually("the API server of the new control plane answers", func(ctx context.Context) error {
		_, err := s.Client(fresh[0]).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})

	s.keepsBudget(fresh[1])
	s.wantNodes("host-2", "host-3", "host-4", "host-5", fresh[0].Name)
	s.wantAs(map[string]lab.Snapshot{fresh[1].Name: before})
	s.serves(2)
}

// wantNodes waits until exactly these nodes exist, and are ready.
func (s *testbed) wantNodes(names ...string) {
	s.T.Helper()
	slices.Sort(names)
	s.Eventually("the nodes are ready", func(ctx context.Context) error {
		ready, err := readyNodes(ctx, s.Client(nil))
		slices.Sort(ready)
		if err == nil && !slices.Equal(ready, names) {
			return fmt.Errorf("ready are %v, want %v", ready, names)
		}
		return err
	})
}

// starts returns the processes of our components on a host. It omits the controller-manager and
// the scheduler: they end, and are started again, if they do not renew their Lease in time.
func (s *testbed) starts(h *lab.Host) string {
	s.T.Helper()
	out, err := h.Run(s.T.Context(), "sh", "-c", `for name in etcd kube-apiserver kubelet containerd; do echo $name $(pgrep -f "^/opt/orrery/bin/$name( |$)"); done`)
	if err != nil {
		s.T.Fatal(err)
	}
	return out
}

// keepsBudget removes a worker that runs the whole workload. While the worker is drained, the
// disruption budget holds.
func (s *testbed) keepsBudget(h *lab.Host) {
	s.T.Helper()
	cs := s.Client(nil)
	s.Kubectl(`{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"`+h.Name+`"}}}}}`,
		"patch", "deployment", "web", "--patch-file", "/dev/stdin")
	s.rolledOut()
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
	s.Eventually("the budget is made", func(ctx context.Context) error {
		_, err := cs.PolicyV1().PodDisruptionBudgets("default").Create(ctx, budget, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt had no answer
		}
		return err
	})
	// The pods cannot run on another node. The budget protects the last pod, and the error of
	// the drain names the budget.
	out, err := s.Try("cluster", "delete-node", "oak", h.Name, "--drain-timeout", "10s", "--attempts", "1", "--yes")
	if err == nil || !strings.Contains(out, "budget") {
		s.T.Errorf("a drain against a disruption budget: %v\n%s", err, out)
	}
	s.Eventually("one pod of web is still there", func(ctx context.Context) error {
		pods, err := cs.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web", FieldSelector: "spec.nodeName=" + h.Name})
		if err == nil && len(pods.Items) == 0 {
			return errors.New("there is none")
		}
		return err
	})
	s.Kubectl(`[{"op":"remove","path":"/spec/template/spec/nodeSelector"}]`, "patch", "deployment", "web", "--type", "json", "--patch-file", "/dev/stdin")
	s.Orrery("cluster", "delete-node", "oak", h.Name, "--yes")
	s.Eventually("the node is asked for", func(ctx context.Context) error {
		_, err := cs.CoreV1().Nodes().Get(ctx, h.Name, metav1.GetOptions{})
		if err == nil {
			s.T.Fatalf("the node of %s is still there", h.Name)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
