package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// says checks that an error contains all the texts.
func says(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q has no %q", err, w)
		}
	}
}

// grown returns a spec with one more worker.
func (l *lab) grown() *clusterv1alpha1.Provision {
	spec := l.spec.DeepCopy()
	spec.Hosts = hosttest.Hosts(len(spec.Hosts) + 1)
	name := spec.Hosts[len(spec.Hosts)-1].Name
	spec.RoleGroups[clusterv1alpha1.RoleWorker] = append(spec.RoleGroups[clusterv1alpha1.RoleWorker], name)
	return spec
}

// maxPods returns a spec with another setting of the kubelet.
func (l *lab) maxPods(n int32) *clusterv1alpha1.Provision {
	spec := l.spec.DeepCopy()
	spec.Kubernetes.MaxPods = n
	return spec
}

// TestUnreachable: a host of the cluster that does not answer stays in the cluster, unchanged.
func TestUnreachable(t *testing.T) {
	l := built(t, 3, 1)
	before := l.trees()
	l.unreachable("h-3")

	op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(50))
	says(t, err, "h-3", "all other hosts are done", "orrery operation resume "+op.Name)
	if kept := l.kept(op.Name); kept.Status.Phase != lifecyclev1alpha1.PhaseFailed || !strings.Contains(kept.Status.Message, "h-3") {
		t.Errorf("record: %s %q", kept.Status.Phase, kept.Status.Message)
	}
	const config = "/etc/kubernetes/kubelet.yaml"
	for _, name := range []string{"h-1", "h-2"} {
		if l.tree(name)[config] == before[name][config] {
			t.Errorf("host %s was not changed", name)
		}
	}
	l.untouched(before, "h-3")

	l.spec = l.grown()
	add := l.must(lifecyclev1alpha1.ActionAddNode, l.spec, hosts("h-4"))
	if add.Status.Phase != lifecyclev1alpha1.PhaseSucceeded {
		t.Errorf("AddNode: phase %s", add.Status.Phase)
	}
	l.untouched(before, "h-3")
	for _, name := range []string{"h-3", "h-4"} {
		if _, err := l.cs.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("node %s: %v", name, err)
		}
	}

	l.unreachable()
	l.must(lifecyclev1alpha1.ActionApply, l.maxPods(50))
	if l.tree("h-3")[config] == before["h-3"][config] {
		t.Error("host h-3 is back and was not changed")
	}
}

// TestUnreachableNew: all new hosts must be reachable before anything is done.
func TestUnreachableNew(t *testing.T) {
	l := newLab(t, 3, 1)
	l.unreachable("h-2")
	_, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
	says(t, err, "h-2", "unreachable")
	for _, h := range l.spec.Hosts {
		if slices.ContainsFunc(l.fleet.Commands(h.Name), func(c string) bool { return c != "facts" }) {
			t.Errorf("host %s: %v", h.Name, l.fleet.Commands(h.Name))
		}
	}
}

// TestPreflight: the error names the host, the problem and what to do. Nothing is done on any host.
func TestPreflight(t *testing.T) {
	for name, tc := range map[string]struct {
		set  func(*hosttest.Fleet)
		want []string
	}{
		"ClockAhead": {
			func(f *hosttest.Fleet) { f.Clock = map[string]time.Duration{"h-2": 10 * time.Second} },
			[]string{"host h-2", "clock is 10", "ahead", "chrony"},
		},
		"ClockBehind": {
			func(f *hosttest.Fleet) { f.Clock = map[string]time.Duration{"h-2": -10 * time.Second} },
			[]string{"host h-2", "behind", "chrony"},
		},
		"NotRoot": {
			func(f *hosttest.Fleet) { f.Facts = map[string]map[string]string{"h-2": {"uid": "1000"}} },
			[]string{"host h-2", "1000", "sudo"},
		},
		"WrongArchitecture": {
			func(f *hosttest.Fleet) { f.Facts = map[string]map[string]string{"h-1": {"arch": "riscv64"}} },
			[]string{"h-1", "riscv64", "amd64"},
		},
		"NoSpace": {
			func(f *hosttest.Fleet) {
				f.Facts = map[string]map[string]string{"h-2": {"df": "/dev/vda1 104857600 104756224 102400 99% /"}}
			},
			[]string{"host h-2", "/var/lib has 100 MiB free"},
		},
		"WrongAddress": {
			func(f *hosttest.Fleet) {
				f.Facts = map[string]map[string]string{"h-2": {"address": "2: eth0    inet 10.77.0.99/16 scope global eth0"}}
			},
			[]string{"host h-2", "internalAddress"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 2, 1)
			tc.set(l.fleet)
			_, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
			says(t, err, tc.want...)
			if _, ok := errors.AsType[*lifecycle.PreflightError](err); !ok {
				t.Errorf("%T", err)
			}
			for _, h := range l.spec.Hosts {
				if slices.ContainsFunc(l.fleet.Commands(h.Name), func(c string) bool { return c != "facts" }) {
					t.Errorf("host %s: %v", h.Name, l.fleet.Commands(h.Name))
				}
			}
		})
	}
}

// TestDeleteUnreachable: a host that cannot be undone is forgotten only on request.
func TestDeleteUnreachable(t *testing.T) {
	l := built(t, 3, 1)
	before := l.trees()
	l.unreachable("h-3")

	_, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec)
	says(t, err, "h-3", "--forget-unreachable")
	l.untouched(before, "h-1", "h-2", "h-3")

	rest := l.spec.DeepCopy()
	rest.Hosts = rest.Hosts[:2]
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	leave := hosts("h-3")
	_, err = l.run(lifecyclev1alpha1.ActionDeleteNode, rest, leave)
	says(t, err, "h-3", "--forget-unreachable")
	if _, err := l.cs.CoreV1().Nodes().Get(t.Context(), "h-3", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	l.must(lifecyclev1alpha1.ActionDeleteNode, rest, leave, forget)
	if _, err := l.cs.CoreV1().Nodes().Get(t.Context(), "h-3", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("node h-3 after it was forgotten: %v", err)
	}
	l.untouched(before, "h-1", "h-2", "h-3")

	l.unreachable("h-2")
	l.must(lifecyclev1alpha1.ActionDelete, rest, forget)
	l.untouched(before, "h-2", "h-3")
	if tree := l.tree("h-1"); len(tree) != 2 {
		t.Errorf("host h-1 after the delete: %v", paths(tree))
	}
}

// TestDeleteNode: a worker is removed without leftovers, and the others are not disturbed.
func TestDeleteNode(t *testing.T) {
	l := built(t, 3, 1)
	before := l.trees()
	rest := l.spec.DeepCopy()
	rest.Hosts = rest.Hosts[:2]
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"))
	if tree := l.tree("h-3"); len(tree) != 2 {
		t.Errorf("host h-3 has %v", paths(tree))
	}
	if _, err := l.cs.CoreV1().Nodes().Get(t.Context(), "h-3", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("node h-3: %v", err)
	}
	l.untouched(before, "h-1", "h-2")
	if _, changes, err := l.engine.Plan(t.Context(), rest); err != nil || len(changes.Items) != 0 {
		t.Errorf("there is still something to do: %v %v", changes, err)
	}
}

// TestDeleteNodeWhileAnotherIsAway: a remaining host that does not answer stays unchanged, and the
// record says so.
func TestDeleteNodeWhileAnotherIsAway(t *testing.T) {
	l := built(t, 3, 1)
	before := l.trees()
	rest := l.spec.DeepCopy()
	rest.Hosts = rest.Hosts[:2]
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	l.unreachable("h-2")
	op := l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-3"))
	for _, want := range []string{"left as they are", "h-3 is gone", "host h-2", "when they are back"} {
		if !strings.Contains(op.Status.Message, want) {
			t.Errorf("the record says %q, and not %q", op.Status.Message, want)
		}
	}
	l.untouched(before, "h-1", "h-2")
}

// TestOtherCluster: a host of another cluster is never changed.
func TestOtherCluster(t *testing.T) {
	l := built(t, 1, 1)
	before := l.trees()
	other := l.elsewhere(lifecycle.Files(t.TempDir()), "test")
	other.Cluster = "elm"
	for _, action := range []lifecyclev1alpha1.Action{lifecyclev1alpha1.ActionCreate, lifecyclev1alpha1.ActionDelete} {
		op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "elm", Action: action, Attempts: 1}}
		if err := other.Env.Create(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		says(t, other.Run(t.Context(), op, l.spec), "host h-1", "belongs to another cluster", "oak")
		l.untouched(before, "h-1")
	}
}

// TestSecrets: logins of hosts are only in the state, which is stored as a secret.
func TestSecrets(t *testing.T) {
	l := newLab(t, 2, 1)
	const secret = "correct-horse-battery"
	for i := range l.spec.Hosts {
		l.spec.Hosts[i].Password, l.spec.Hosts[i].SudoPassword = secret, secret+"-sudo"
	}
	var said []string
	l.env.progress = func(op lifecyclev1alpha1.Operation, r lifecyclev1alpha1.StepRecord) {
		said = append(said, jsonOf(t, op), jsonOf(t, r))
	}
	p, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	changes.Print(&printed)
	said = append(said, jsonOf(t, p), jsonOf(t, changes), printed.String())
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.fleet.NodeFault = func(string, string) error { return errors.New("broken") }
	_, err = l.run(lifecyclev1alpha1.ActionApply, l.maxPods(60))
	says(t, err, "broken")
	said = append(said, err.Error())
	for path, content := range filesIn(t, string(l.store)) {
		if !strings.HasSuffix(path, "/state.json") && !strings.Contains(path, "/oak/hosts/") {
			said = append(said, content)
		}
	}
	for _, tree := range l.trees() {
		for _, content := range tree {
			said = append(said, content)
		}
	}
	state, err := l.store.Load(context.WithoutCancel(t.Context()), "oak")
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Split(string(state.InUse()[plan.AuthorityCluster].Key), "\n")[1]
	records := filesIn(t, l.store.Path("oak", "operations"))
	for path, content := range records {
		if strings.Contains(content, key) {
			t.Errorf("%s has the authority's key", path)
		}
	}
	for _, s := range said {
		if strings.Contains(s, secret) {
			t.Errorf("the password is in %.200q", s)
		}
	}
	if text := jsonOf(t, changes) + printed.String(); strings.Contains(text, key) {
		t.Error("the authority's key is in the changes")
	}
}

// TestAllProblemsAtOnce: one error reports all problems of hosts: unreachable hosts, refused
// logins, and findings of the preflight.
func TestAllProblemsAtOnce(t *testing.T) {
	l := newLab(t, 6, 1)
	l.fleet.Facts = map[string]map[string]string{"h-4": {"uid": "1000"}, "h-5": {"df": "/dev/vda1 104857600 104756224 102400 99% /"}}
	l.fleet.Fault = func(name, command string) error {
		switch {
		case name == "h-1" && command == "dial", name == "h-2" && command == "dial":
			return &host.Unauthorized{Host: name, User: "root", Tried: []string{"password"}, Err: errors.New("denied")}
		case name == "h-3":
			return &host.Unreachable{Host: name, Address: "10.77.0.3:22", Err: syscall.EHOSTUNREACH}
		}
		return nil
	}
	want := []string{
		"host h-1: login of root refused", "host h-2: login of root refused", "host h-3: unreachable",
		"host h-4: commands run as user 1000", "host h-5: /var/lib has 100 MiB free",
	}
	op, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
	l.wantRefused(op, err, want...)
	_, _, err = l.engine.Plan(t.Context(), l.spec)
	says(t, err, want...)
	findings, err := l.engine.Preflight(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	for _, f := range findings {
		if f.Severity == plan.SeverityError && !slices.Contains(bad, f.Host) {
			bad = append(bad, f.Host)
		}
	}
	slices.Sort(bad)
	if d := cmp.Diff([]string{"h-1", "h-2", "h-3", "h-4", "h-5"}, bad); d != "" {
		t.Errorf("preflight (-want +got): %s", d)
	}
	for _, h := range l.spec.Hosts {
		if commands := l.fleet.Commands(h.Name); slices.ContainsFunc(commands, func(c string) bool { return c != "facts" && c != "dial" }) {
			t.Errorf("host %s: %v", h.Name, commands)
		}
	}
}
