package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/lab/site"
)

// TestFiveHosts changes three control planes and two workers that all run a workload with a
// disruption budget: by the hash of a plan, first while a host does not answer; with a setting
// that prevents the start of every kubelet, and back; and with two hosts less.
func TestFiveHosts(t *testing.T) {
	t.Parallel()
	testenv.Rotate(t, 2, "TestFiveHosts", "TestThreeControlPlanes")
	s := newTestbed(t, 5)
	names := []string{"host-1", "host-2", "host-3", "host-4", "host-5"}
	with := func(kubernetes, memory string) string {
		return s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: names[:3], Worker: names, Kubernetes: kubernetes, Memory: memory, Timeout: 20})
	}
	s.Orrery("cluster", "create", "-f", with("", ""), "--yes")
	s.wantNodes(names...)
	s.spreads(names...)
	j := s.records(s.Hosts()[:3]...)

	const changed = "maxPods: 90\n      apiserverArgs: [max-requests-inflight=500]"
	since := s.now(j)
	s.wholeOrNotAtAll(with(changed, ""), s.Host("host-5"))
	s.rolled(j, since, []string{
		"apiserver/unit host-1", "apiserver/unit host-2", "apiserver/unit host-3",
		"kubelet/unit host-1", "kubelet/unit host-2", "kubelet/unit host-3", "kubelet/unit host-4", "kubelet/unit host-5",
	})
	s.goesBack(j, func() string {
		return with(changed, "a lot")
	}, func() string { return with(changed, "") })
	s.shrinks(j, "host-4", "host-5")
}

// spreads runs the workload with one pod on each node. Its disruption budget lets one pod be
// missing.
func (s *testbed) spreads(nodes ...string) {
	s.T.Helper()
	s.Kubectl(strings.Replace(s.WebManifest(len(nodes)), "      terminationGracePeriodSeconds: 1\n", `      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
`, 1)+fmt.Sprintf(`---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: default}
spec:
  minAvailable: %d
  selector: {matchLabels: {app: web}}
`, len(nodes)-1), "apply", "-f", "-")
	s.rolledOut()
	pods := s.webPods()
	if got := slices.Sorted(maps.Keys(pods)); !slices.Equal(got, nodes) {
		s.T.Fatalf("the pods of web are on %v, want one on each of %v", got, nodes)
	}
}

// webPods returns the pods of the workload by node, with the restart counts of their
// containers.
func (s *testbed) webPods() map[string]string {
	s.T.Helper()
	var pods *corev1.PodList
	s.Eventually("the pods of web are listed", func(ctx context.Context) (err error) {
		pods, err = s.Client(s.Host("host-2")).CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: webSelector})
		return err
	})
	all := map[string]string{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			all[p.Spec.NodeName] += fmt.Sprintf("%s %s %d;", p.Name, c.ContainerID, c.RestartCount)
		}
	}
	return all
}

// wholeOrNotAtAll applies a plan by its hash. While a host does not answer, apply must change
// nothing. Once the host is back, apply must do the whole plan.
func (s *testbed) wholeOrNotAtAll(file string, away *lab.Host) {
	s.T.Helper()
	var changes plan.Changes
	out := s.Orrery("cluster", "apply", "-f", file, "--dry-run", "-o", "json")
	if err := json.Unmarshal([]byte(out), &changes); err != nil {
		s.T.Fatalf("%v: %s", err, out)
	}
	before, started, pods := s.snapshots(), s.startsOf(s.Hosts()), s.webPods()
	if err := away.Cut(s.T.Context()); err != nil {
		s.T.Fatal(err)
	}
	out, err := s.Try("cluster", "apply", "-f", file, "--plan", changes.Hash)
	if reconnectErr := away.Reconnect(s.T.Context()); reconnectErr != nil {
		s.T.Fatal(reconnectErr)
	}
	if err == nil {
		s.T.Errorf("a plan was done of which a host did not answer:\n%s", out)
	}
	for _, want := range []string{changes.Hash, "host " + away.Name + ": unreachable at " + away.Address} {
		if !strings.Contains(out, want) {
			s.T.Errorf("the message lacks %q:\n%s", want, out)
		}
	}
	for _, h := range s.newest().Status.Hosts {
		if h.State == lifecyclev1alpha1.StepChanged {
			s.T.Errorf("the record says that host %s was changed", h.Name)
		}
	}
	for name, snap := range before {
		if d := filesOnly(lab.Diff(snap, s.snapshot(s.Host(name)))); d != "" {
			s.T.Errorf("host %s was changed:\n%s", name, d)
		}
	}
	if d := gocmp.Diff(started, s.startsOf(s.Hosts())); d != "" {
		s.T.Errorf("something was restarted (-before +now):\n%s", d)
	}
	if d := gocmp.Diff(pods, s.webPods()); d != "" {
		s.T.Errorf("pods of web were touched (-before +now):\n%s", d)
	}
	s.Orrery("cluster", "apply", "-f", file, "--plan", changes.Hash)
	if out := s.Orrery("cluster", "plan", "-f", file); !strings.Contains(out, "Nothing to do.") {
		s.T.Errorf("there is still something to do:\n%s", out)
	}
}

// startsOf returns the processes of our components, by host.
func (s *testbed) startsOf(hosts []*lab.Host) map[string]string {
	s.T.Helper()
	all := map[string]string{}
	for _, h := range hosts {
		all[h.Name] = s.starts(h)
	}
	return all
}

// rolled checks that the last run changed one host after the other. No node was cordoned,
// because these restarts disturb no pod, and the workload kept its budget and its pods.
func (s *testbed) rolled(j *journal, since moment, want []string) {
	s.T.Helper()
	steps := slices.DeleteFunc(slices.Clone(s.newest().Status.Steps), func(r lifecyclev1alpha1.StepRecord) bool {
		return r.ID != "apiserver/unit" && r.ID != "kubelet/unit"
	})
	slices.SortFunc(steps, func(a, b lifecyclev1alpha1.StepRecord) int {
		return cmp.Or(a.Started.Compare(b.Started.Time), strings.Compare(a.Host, b.Host))
	})
	var order []string
	for _, r := range steps {
		order = append(order, r.ID+" "+r.Host)
	}
	if d := gocmp.Diff(want, order); d != "" {
		s.T.Errorf("the order of restarts (-want +got):\n%s", d)
	}
	s.upToDate(j)
	if acts := j.nodeActs(since); len(acts) > 0 {
		s.T.Errorf("restarts disturb no pods, and these nodes were touched: %v", acts)
	}
	s.keptBudget(j, since)
}

// keptBudget checks that at no time more than one of the five pods was missing.
func (s *testbed) keptBudget(j *journal, since moment) {
	s.T.Helper()
	fewest, story := j.fewestReady(since, func(string) bool { return true })
	s.T.Logf("at worst %d pods of web were ready: %q", fewest, story)
	if fewest < 4 {
		s.T.Errorf("once only %d pods of web were ready, and the budget is 4", fewest)
	}
}

// goesBack applies a setting that prevents the start of kubelets. The run ends at the first
// host, names it and what to do, and leaves the other hosts unchanged. The previous generation
// can be restored.
func (s *testbed) goesBack(j *journal, bad, good func() string) {
	s.T.Helper()
	first, rest := s.Hosts()[0], s.Hosts()[1:]
	since, started, pods := s.now(j), s.startsOf(rest), s.webPods()
	out, err := s.Try("cluster", "apply", "-f", bad(), "--yes", "--attempts", "1")
	if err == nil {
		s.T.Fatalf("kubelets start with it:\n%s", out)
	}
	for _, want := range []string{"host " + first.Name + ": kubelet/probe", "orrery-kubelet", "quantities must match", "orrery cluster rollback oak"} {
		if !strings.Contains(out, want) {
			s.T.Errorf("the message lacks %q:\n%s", want, out)
		}
	}
	out = s.Orrery("cluster", "rollback", "oak", "--yes")
	if !strings.Contains(out, "still has the change") {
		s.T.Errorf("rollback says:\n%s", out)
	}
	s.wantNodes("host-1", "host-2", "host-3", "host-4", "host-5")
	if out := s.Orrery("cluster", "plan", "-f", good()); !strings.Contains(out, "Nothing to do.") {
		s.T.Errorf("after the rollback there is still something to do:\n%s", out)
	}
	if d := gocmp.Diff(started, s.startsOf(rest)); d != "" {
		s.T.Errorf("on hosts that were not reached something was restarted (-before +now):\n%s", d)
	}
	s.Eventually("the pod on the host is ready again", func(context.Context) error {
		if d := gocmp.Diff(pods, s.webPods()); d != "" {
			return errors.New("pods of web were touched (-before +now): " + d)
		}
		return nil
	})
	s.upToDate(j)
	if fewest, story := j.fewestReady(since, func(node string) bool { return node != first.Name }); fewest < len(rest) {
		s.T.Errorf("pods of web on hosts that were not reached were not ready: %q", story)
	}
	if acts := j.nodeActs(since); len(acts) > 0 {
		s.T.Errorf("nodes were touched: %v", acts)
	}
}

// shrinks removes hosts that each run a pod of the workload: they are cordoned, drained within
// its budget, and removed.
func (s *testbed) shrinks(j *journal, names ...string) {
	s.T.Helper()
	since := s.now(j)
	s.Orrery(append([]string{"cluster", "delete-node", "oak", "--yes"}, names...)...)
	s.upToDate(j)
	var want []string
	for _, act := range []string{"cordon ", "delete "} {
		for _, name := range names {
			want = append(want, act+name)
		}
	}
	if d := gocmp.Diff(want, j.nodeActs(since)); d != "" {
		s.T.Errorf("what became of nodes (-want +got):\n%s", d)
	}
	s.keptBudget(j, since)
	s.rolledOut()
}
