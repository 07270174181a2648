package lifecycle_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// loseData stops the etcd of hosts and takes their data away, as when their file system is not
// mounted. The returned function puts the data back.
func (e *etcds) loseData(names ...string) (back func()) {
	e.l.t.Helper()
	e.fail(names...)
	var moved [][2]string
	for _, name := range names {
		for _, dir := range []string{filepath.Join(e.l.fleet.Dir, name+".etcd", "member"), e.l.fleet.Root(name) + "/var/lib/etcd/member"} {
			away := filepath.Join(e.l.t.TempDir(), "member")
			if err := os.Rename(dir, away); err != nil {
				e.l.t.Fatal(err)
			}
			moved = append(moved, [2]string{dir, away})
		}
	}
	return func() {
		for _, m := range moved {
			if err := os.Rename(m[1], m[0]); err != nil {
				e.l.t.Fatal(err)
			}
		}
	}
}

// wantPlanRefused checks that neither a plan nor an apply of a spec is made, with an error that
// contains all these texts, and that no host is changed.
func (l *lab) wantPlanRefused(t *testing.T, spec *clusterv1alpha1.Provision, texts ...string) {
	t.Helper()
	_, _, err := l.engine.Plan(t.Context(), spec)
	says(t, err, texts...)
	if _, ok := errors.AsType[*lifecycle.PreflightError](err); !ok {
		t.Errorf("the plan is refused with %T", err)
	}
	before, fault := l.trees(), l.fleet.Fault
	changed := l.changed()
	op, err := l.run(lifecyclev1alpha1.ActionApply, spec)
	l.wantRefused(op, err, texts...)
	if got := changed(); len(got) > 0 {
		t.Errorf("changed were %v", got)
	}
	l.fleet.Fault = fault
	for _, h := range spec.Hosts {
		l.untouched(before, h.Name)
	}
}

// TestEtcdLostItsData: an etcd that has had a quorum does not start without its data, and neither a
// plan nor a run begins.
func TestEtcdLostItsData(t *testing.T) {
	t.Run("OnlyMember", func(t *testing.T) {
		l, e := withRealEtcd(t, 1, 1)
		pids := e.pids()
		if _, changes, err := l.engine.Plan(t.Context(), l.spec); err != nil || !changes.Nothing() {
			t.Fatalf("after the first quorum there is more to do: %+v %v", changes, err)
		}
		if got := e.restarted(pids); len(got) > 0 {
			t.Errorf("etcd was restarted on %v", got)
		}
		back := e.loseData("h-1")
		unit := e.member("h-1").unit
		e.start("h-1", unit) // as systemd does
		if e.member("h-1").runs() {
			t.Error("systemd starts an etcd without its data")
		}
		e.launch("h-1", unit) // as somebody does by hand
		if e.member("h-1").runs() {
			t.Error("an etcd without its data begins an empty cluster")
		}
		// It has left a database without a log.
		if err := os.RemoveAll(filepath.Join(l.fleet.Dir, "h-1.etcd", "member")); err != nil {
			t.Fatal(err)
		}
		l.wantPlanRefused(t, l.spec, "host h-1: the data of its etcd are gone", "no write-ahead log in /var/lib/etcd/member/wal",
			"mount the file system", `"orrery cluster delete oak"`)
		_, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
		says(t, err, "host h-1: the data of its etcd are gone")
		findings, err := l.engine.Preflight(t.Context(), l.spec)
		if err != nil || !slices.ContainsFunc(findings, func(f plan.Finding) bool { return f.Check == plan.CheckData && f.Host == "h-1" }) {
			t.Errorf("preflight: %v %v", findings, err)
		}
		back()
		l.must(lifecyclev1alpha1.ActionApply, l.spec)
		e.wantMembers("h-1", "h-1")
	})
	t.Run("OneOfThree", func(t *testing.T) {
		l, e := withRealEtcd(t, 3, 3)
		e.loseData("h-3")
		l.wantPlanRefused(t, l.spec, "host h-3: the data of its etcd are gone", `"orrery cluster delete-node oak h-3"`, `"orrery cluster add-node -f FILE"`)
		// The way out. What is unreachable is unknown, and stops nothing.
		l.unreachable("h-3")
		op, err := l.run(lifecyclev1alpha1.ActionApply, l.spec)
		l.wantRefused(op, err, "all other hosts are done", "h-3")
		l.unreachable()
		whole := l.spec
		l.must(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-1", "h-2"), hosts("h-3"))
		e.wantMembers("h-1", "h-1", "h-2")
		l.must(lifecyclev1alpha1.ActionAddNode, whole, hosts("h-3"))
		e.wantMembers("h-3", "h-1", "h-2", "h-3")
	})
}

// TestRenewalBesideLostData: a host whose etcd has lost its data keeps its certificates and is
// named. All others are renewed.
func TestRenewalBesideLostData(t *testing.T) {
	l := built(t, 4, 3)
	l.fleet.Facts = map[string]map[string]string{"h-3": {"etcd-log": "absent"}}
	at := l.after(soon)
	var starts []string
	acts := l.acts()
	_, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
	says(t, err, "these hosts keep their certificates", "host h-3: the data of its etcd are gone", `"orrery cluster delete-node oak h-3"`)
	l.fresh(at, "h-1", "h-2", "h-4")
	for _, act := range acts() {
		if strings.HasPrefix(act, "h-3 ") {
			starts = append(starts, act)
		}
	}
	if len(starts) > 0 {
		t.Errorf("on the host that lost its data: %v", starts)
	}
	due := l.due(at)
	if !slices.ContainsFunc(due, func(name string) bool { return strings.HasPrefix(name, "h-3/") }) {
		t.Errorf("due is %v, which lacks host h-3", due)
	}
}

// otherData answers for namespace kube-system as an API server whose etcd has other data, while on
// is set. It counts the writes that it gets then.
type otherData struct {
	next   http.RoundTripper
	on     *atomic.Bool
	writes *atomic.Int32
}

// RoundTrip implements http.RoundTripper.
func (o otherData) RoundTrip(r *http.Request) (*http.Response, error) {
	if o.on.Load() && r.Method != http.MethodGet {
		o.writes.Add(1)
	}
	if o.on.Load() && r.URL.Path == "/api/v1/namespaces/kube-system" {
		r = r.Clone(r.Context())
		r.URL.Path = "/api/v1/namespaces/no-such-namespace"
	}
	return o.next.RoundTrip(r)
}

// TestDataOfAnotherCluster: the UID of kube-system is recorded once, and nothing is written to an
// API server that shows another one, or none.
func TestDataOfAnotherCluster(t *testing.T) {
	l := newLab(t, 2, 1)
	var on atomic.Bool
	var writes atomic.Int32
	connect := l.engine.Connect
	l.engine.Connect = func(c host.Conn, port int32, keys pki.Bundle) *rest.Config {
		cfg := connect(c, port, keys)
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return otherData{next: next, on: &on, writes: &writes} })
		return cfg
	}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	system, err := l.cs.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.state().KubeSystemUID; got != system.UID {
		t.Errorf("the state has UID %q, want %q", got, system.UID)
	}
	t.Run("NoKubeSystem", func(t *testing.T) {
		on.Store(true)
		defer on.Store(false)
		l.wantPlanRefused(t, l.spec, "host h-1: its API server does not read the data of cluster oak", "no namespace kube-system", string(system.UID), `"orrery cluster delete oak"`)
	})
	t.Run("LostInTheRun", func(t *testing.T) {
		defer on.Store(false)
		writes.Store(0)
		if err := l.cs.AppsV1().Deployments(metav1.NamespaceSystem).Delete(t.Context(), "coredns", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		l.env.progress = func(_ lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
			if strings.HasPrefix(s.ID, "objects/") {
				on.Store(true)
			}
		}
		defer func() { l.env.progress = nil }()
		op, err := l.run(lifecyclev1alpha1.ActionApply, l.spec)
		l.wantRefused(op, err, "host h-1: its API server does not read the data of cluster oak", "nothing is written to it")
		if n := writes.Load(); n > 0 {
			t.Errorf("%d writes went to the other data", n)
		}
	})
	t.Run("OtherKubeSystem", func(t *testing.T) {
		state := l.state()
		state.KubeSystemUID = "of-the-data-before"
		if err := l.store.Save(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		l.wantPlanRefused(t, l.spec, "host h-1: its API server does not read the data of cluster oak", "of-the-data-before", string(system.UID))
		_, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
		says(t, err, "of-the-data-before")
	})
	t.Run("NotKnownYet", func(t *testing.T) { // as in a state of an earlier version
		state := l.state()
		state.KubeSystemUID = ""
		if err := l.store.Save(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.engine.Plan(t.Context(), l.spec); err != nil {
			t.Fatal(err)
		}
		if got := l.state().KubeSystemUID; got != system.UID {
			t.Errorf("the state has UID %q, want %q", got, system.UID)
		}
	})
	t.Run("Deleted", func(t *testing.T) { // the way out works without the data
		on.Store(true)
		defer on.Store(false)
		l.must(lifecyclev1alpha1.ActionDelete, l.spec)
	})
}

// deleteNode deletes a Node as an administrator would.
func (l *lab) deleteNode(name string) {
	l.t.Helper()
	if err := l.cs.CoreV1().Nodes().Delete(l.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// registerAtStart lets kubelets register their Nodes only when they start, as real ones do.
func (l *lab) registerAtStart() {
	l.fleet.Applied = func(name string, req node.Request) {
		if slices.Contains(req.Again, "kubelet/unit") {
			l.register(name, req)
		}
	}
}

// TestNodeWasDeleted: a Node that somebody deleted is in the plan and its hash. The run restarts
// its kubelet, which registers the Node, and sets its labels again.
func TestNodeWasDeleted(t *testing.T) {
	l := built(t, 3, 1)
	_, before, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil || !before.Nothing() {
		t.Fatalf("%+v %v", before, err)
	}
	l.registerAtStart()
	l.deleteNode("h-2")
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	changes.PrintDetail(&shown)
	for _, want := range []string{
		"h-2\n  node\n    ! Unit orrery-kubelet (repaired) [restart]\n", "there is no Node of this host", "* NodeObject h-2\n", "workers, 1 at a time\n    h-2: node\n",
	} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is not shown:\n%s", want, shown.String())
		}
	}
	if changes.Hash == before.Hash {
		t.Error("the plan has the hash of the plan without it")
	}
	op := l.must(lifecyclev1alpha1.ActionApply, l.spec, byHash(changes.Hash), deadline)
	var restarted []string
	for _, s := range op.Status.Steps {
		if s.State == lifecyclev1alpha1.StepChanged {
			restarted = append(restarted, s.Host+" "+s.ID)
		}
	}
	slices.Sort(restarted)
	if d := cmp.Diff([]string{"cluster node/h-2", "cluster nodes/registered", "h-2 kubelet/unit"}, restarted); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	n, err := l.cs.CoreV1().Nodes().Get(t.Context(), "h-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Labels["node-role.kubernetes.io/worker"]; !ok {
		t.Errorf("labels of the Node: %v", n.Labels)
	}
	if _, changes, err = l.engine.Plan(t.Context(), l.spec); err != nil || !changes.Nothing() {
		t.Errorf("there is more to do: %+v %v", changes, err)
	}
}

// deadline ends a run that waits for something that does not come.
func deadline(s *lifecyclev1alpha1.OperationSpec) {
	s.Deadline = &metav1.Duration{Duration: patience}
}

// TestNodesAreUnknown: while no API server answers, no Node counts as missing.
func TestNodesAreUnknown(t *testing.T) {
	l := built(t, 2, 1)
	l.deleteNode("h-2")
	l.stopUnit("h-1", "orrery-kube-apiserver")
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes.Items {
		if c.Step == "kubelet/unit" {
			t.Errorf("planned: %+v", c)
		}
	}
}

// TestDeleteNodeWaitsForItsChanges: taking a host out does not wait for Nodes and workloads that it
// has not changed.
func TestDeleteNodeWaitsForItsChanges(t *testing.T) {
	l := built(t, 3, 1)
	unready := `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test"}]}}`
	if _, err := l.cs.CoreV1().Nodes().Patch(t.Context(), "h-2", types.MergePatchType, []byte(unready), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	deployments, err := l.cs.AppsV1().Deployments(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(deployments.Items) == 0 {
		t.Fatalf("deployments: %v %v", deployments, err)
	}
	for _, d := range deployments.Items {
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, UnavailableReplicas: *d.Spec.Replicas,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse}},
		}
		if _, err := l.cs.AppsV1().Deployments(d.Namespace).UpdateStatus(t.Context(), &d, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	rest := l.spec.DeepCopy()
	rest.Hosts = rest.Hosts[:2]
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"), deadline)
	if tree := l.tree("h-3"); len(tree) != 2 {
		t.Errorf("host h-3 has %v", paths(tree))
	}
}

// TestMemberLeft: a run that takes a host out has removed its member and no more. A plan of the
// spec with the host names the way out, which works.
func TestMemberLeft(t *testing.T) {
	l, e := withRealEtcd(t, 3, 3)
	whole := l.spec
	l.fleet.Fault = func(name, command string) error {
		if name != "h-3" || command != "apply" {
			return nil
		}
		if members, _ := e.list("h-1"); len(members) == 2 {
			return &host.Unreachable{Host: name, Address: "10.77.0.3:22", Err: syscall.ECONNRESET}
		}
		return nil
	}
	op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-1", "h-2"), hosts("h-3"))
	l.wantRefused(op, err, "host h-3: unreachable")
	l.fleet.Fault = nil
	e.wantMembers("h-1", "h-1", "h-2")
	texts := []string{"host h-3: it is not a member of etcd any more", `"orrery cluster delete-node oak h-3"`, `"orrery cluster add-node -f FILE"`}
	l.wantPlanRefused(t, whole, texts...)
	t.Run("Unknown", func(t *testing.T) { // without a quorum the members are unknown
		e.stop("h-2")
		_, _, err := l.engine.Plan(t.Context(), whole)
		if err != nil && strings.Contains(err.Error(), "not a member") {
			t.Errorf("the plan says: %v", err)
		}
		e.launch("h-2", e.member("h-2").unit)
	})
	l.must(lifecyclev1alpha1.ActionDeleteNode, l.planes("h-1", "h-2"), hosts("h-3"))
	l.must(lifecyclev1alpha1.ActionAddNode, whole, hosts("h-3"))
	e.wantMembers("h-3", "h-1", "h-2", "h-3")
}
