package lifecycle_test

import (
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// badKubelet returns a spec with which no kubelet starts.
func badKubelet(spec *clusterv1alpha1.Provision) *clusterv1alpha1.Provision {
	bad := spec.DeepCopy()
	bad.Kubernetes.KubeletConfiguration = &apiextensionsv1.JSON{Raw: []byte(`{"evictionHard":{"memory.available":"most of it"}}`)}
	return bad
}

// rollback returns the spec to go back to.
func (l *lab) rollback() *clusterv1alpha1.Provision {
	l.t.Helper()
	spec, err := l.state().Rollback()
	if err != nil {
		l.t.Fatal(err)
	}
	return spec
}

// TestRollback: a rollback restores the hosts byte for byte.
func TestRollback(t *testing.T) {
	t.Run("OfAChangeThatFailed", func(t *testing.T) {
		l := built(t, 3, 1)
		before := l.trees()
		// The kubelets of the first two hosts do not start.
		changed := 0
		l.fleet.Broken = func(_, command string) error {
			if command == "apply" {
				changed++
			}
			if changed == 2 {
				return &host.Unreachable{Host: "h-2", Address: "10.77.0.2:22", Err: syscall.ETIMEDOUT}
			}
			return nil
		}
		if _, err := l.run(lifecyclev1alpha1.ActionApply, badKubelet(l.spec)); err == nil {
			t.Fatal("the bad setting was applied")
		}
		l.fleet.Broken = nil
		bad := 0
		for _, h := range l.spec.Hosts {
			if strings.Contains(l.tree(h.Name)["/etc/kubernetes/kubelet.yaml"], "most of it") {
				bad++
			}
		}
		if bad != 2 {
			t.Fatalf("%d hosts have the bad setting, want 2", bad)
		}
		l.must(lifecyclev1alpha1.ActionApply, l.rollback())
		l.untouched(before, "h-1", "h-2", "h-3")
		if spec, err := l.state().Rollback(); err == nil {
			t.Errorf("there is a generation before the first: %v", spec.Kubernetes)
		}
	})
	t.Run("OfAChangeThatWasDone", func(t *testing.T) {
		l := built(t, 2, 1)
		before := l.trees()
		l.must(lifecyclev1alpha1.ActionApply, badKubelet(l.spec))
		after := l.trees()
		_, changes, err := l.engine.Plan(t.Context(), l.rollback())
		if err != nil {
			t.Fatal(err)
		}
		planned := func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = changes.Hash }
		other := func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = strings.Repeat("0", 32) }
		_, err = l.run(lifecyclev1alpha1.ActionApply, l.rollback(), other)
		says(t, err, changes.Hash, `"orrery cluster rollback oak --dry-run"`)
		changed := badKubelet(l.spec)
		changed.Kubernetes.MaxPods = 70
		if _, err = l.run(lifecyclev1alpha1.ActionApply, changed, other); err == nil || strings.Contains(err.Error(), "rollback") {
			t.Errorf("an apply that is not a rollback: %v", err)
		}
		l.must(lifecyclev1alpha1.ActionApply, l.rollback())
		l.must(lifecyclev1alpha1.ActionApply, badKubelet(l.spec))
		_, changes, err = l.engine.Plan(t.Context(), l.rollback())
		if err != nil {
			t.Fatal(err)
		}
		l.must(lifecyclev1alpha1.ActionApply, l.rollback(), planned)
		l.untouched(before, "h-1", "h-2")
		// A second rollback goes forward again.
		l.must(lifecyclev1alpha1.ActionApply, l.rollback())
		l.untouched(after, "h-1", "h-2")
	})
	t.Run("HostsStay", func(t *testing.T) {
		l := newLab(t, 3, 1)
		all := l.spec
		l.spec = all.DeepCopy()
		l.spec.Hosts = l.spec.Hosts[:2]
		l.spec.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
		l.must(lifecyclev1alpha1.ActionCreate, l.spec)
		if _, err := l.state().Rollback(); err == nil {
			t.Error("a cluster that was just built has a generation before")
		}
		l.must(lifecyclev1alpha1.ActionApply, badKubelet(l.spec))
		bad := badKubelet(all)
		l.must(lifecyclev1alpha1.ActionAddNode, bad, hosts("h-3"))
		back := l.rollback()
		if len(back.Hosts) != 3 || back.Kubernetes.KubeletConfiguration != nil {
			t.Errorf("it goes back to %d hosts, with %v", len(back.Hosts), back.Kubernetes.KubeletConfiguration)
		}
		l.must(lifecyclev1alpha1.ActionApply, back)
		if kubelet := l.tree("h-3")["/etc/kubernetes/kubelet.yaml"]; kubelet == "" || strings.Contains(kubelet, "most of it") {
			t.Errorf("host h-3 has %q", kubelet)
		}
	})
	t.Run("OfAPatch", func(t *testing.T) {
		l := built(t, 2, 1)
		l.engine.Settle = time.Second // nobody elects a leader of an etcd that does not run
		before := l.trees()
		const newer = "v1.36.4"
		older, err := l.engine.Catalog.Files(version, "amd64", plan.FileNames...)
		if err != nil {
			t.Fatal(err)
		}
		files, err := l.engine.Catalog.Files(newer, "amd64", plan.FileNames...)
		if err != nil {
			t.Fatal(err)
		}
		mirror := httptest.NewServer(hosttest.Mirror(append(files, older...)))
		t.Cleanup(mirror.Close)
		next := l.spec.DeepCopy()
		next.Source, next.Kubernetes.Version = mirror.URL, newer
		l.must(lifecyclev1alpha1.ActionApply, next)
		other := l.spec.DeepCopy()
		other.Kubernetes.MaxPods = 42
		op, err := l.run(lifecyclev1alpha1.ActionApply, other)
		l.wantRefused(op, err, "v1.36.3 is older than v1.36.4")
		l.fleet.Forget()
		l.must(lifecyclev1alpha1.ActionApply, l.rollback())
		l.untouched(before, "h-1", "h-2")
		if sent := l.fleet.Sent(); len(sent) > 0 {
			t.Errorf("the hosts had not kept %v", sent)
		}
	})
	t.Run("ThatFails", func(t *testing.T) {
		l := built(t, 2, 1)
		l.engine.Settle = time.Second // nobody elects a leader of an etcd that does not run
		before := l.trees()
		const newer = "v1.36.4"
		files, err := l.engine.Catalog.Files(newer, "amd64", plan.FileNames...)
		if err != nil {
			t.Fatal(err)
		}
		older, err := l.engine.Catalog.Files(version, "amd64", plan.FileNames...)
		if err != nil {
			t.Fatal(err)
		}
		mirror := httptest.NewServer(hosttest.Mirror(append(files, older...)))
		t.Cleanup(mirror.Close)
		next := badKubelet(l.spec)
		next.Source, next.Kubernetes.Version = mirror.URL, newer
		l.must(lifecyclev1alpha1.ActionApply, next)
		l.fleet.Fault = func(name, command string) error {
			if name == "h-2" && command == "apply" {
				return &host.Unreachable{Host: name, Address: "10.77.0.2:22", Err: syscall.ETIMEDOUT}
			}
			return nil
		}
		op, err := l.run(lifecyclev1alpha1.ActionApply, l.rollback())
		if err == nil {
			t.Fatal("it went back although a host did not answer")
		}
		l.fleet.Fault = nil
		if back := l.rollback(); back.Kubernetes.Version != version {
			t.Errorf("the same command goes to %s then, want %s still", back.Kubernetes.Version, version)
		}
		if err := l.resume(op.Name); err != nil {
			t.Fatal(err)
		}
		l.untouched(before, "h-1", "h-2")
	})
	t.Run("NotBuilt", func(t *testing.T) {
		l := newLab(t, 1, 1)
		l.unreachable("h-1")
		if _, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec); err == nil {
			t.Fatal("it was built")
		}
		if _, err := l.state().Rollback(); err == nil || !strings.Contains(err.Error(), "not built yet") {
			t.Errorf("error %v", err)
		}
	})
}
