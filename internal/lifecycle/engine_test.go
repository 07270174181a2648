package lifecycle_test

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/content"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, 1) }

const version = "v1.36.3"

// lab is an engine with simulated hosts and a real API server, which plays that of the cluster.
type lab struct {
	t      testing.TB
	engine *lifecycle.Engine
	env    *environment
	fleet  *hosttest.Fleet
	store  lifecycle.Files
	spec   *clusterv1alpha1.Provision
	cs     kubernetes.Interface
	// patient is true if runs that must succeed wait longer for the control plane than those that are
	// refused.
	patient bool
}

// patiently lets a control plane take long to recover until end is called, if the lab is patient.
func (l *lab) patiently() (end func()) {
	if !l.patient {
		return func() {}
	}
	settle := l.engine.Settle
	l.engine.Settle = patience
	return func() { l.engine.Settle = settle }
}

// hurried lets the control plane take half a minute to recover until end is called, in a run that
// is refused because it does not recover.
func (l *lab) hurried() (end func()) {
	settle := l.engine.Settle
	l.engine.Settle = 30 * time.Second
	return func() { l.engine.Settle = settle }
}

// environment is the Environment of the tests, with hooks for single tests.
type environment struct {
	lifecycle.Store

	agent, cache string
	target       func(h clusterv1alpha1.Host) host.Target
	progress     func(lifecyclev1alpha1.Operation, lifecyclev1alpha1.StepRecord)
	built        []byte // last kubeconfig
}

func (e *environment) Target(_ context.Context, h clusterv1alpha1.Host) (host.Target, error) {
	if e.target != nil {
		return e.target(h), nil
	}
	return host.Target{Name: h.Name, Address: h.Address}, nil
}

func (*environment) ExternalEtcd(context.Context, clusterv1alpha1.ExternalEtcd) (*plan.ExternalEtcd, error) {
	return &plan.ExternalEtcd{}, nil
}

func (e *environment) Source(base string) *catalog.Source {
	return &catalog.Source{Base: base, Dir: e.cache}
}

func (e *environment) Agent(string) (string, error) { return e.agent, nil }

func (*environment) Fetch(ctx context.Context, url string) ([]byte, error) {
	return content.Fetch(ctx, url)
}

func (e *environment) Progress(op lifecyclev1alpha1.Operation, step lifecyclev1alpha1.StepRecord) {
	if e.progress != nil {
		e.progress(op, step)
	}
}

func (e *environment) Built(_ context.Context, kubeconfig []byte, _ clusterv1alpha1.SyncMode, _ func(context.Context) (*rest.Config, error)) error {
	e.built = kubeconfig
	return nil
}

// elsewhere returns the engine of another process, with another store.
func (l *lab) elsewhere(store lifecycle.Store, holder string) *lifecycle.Engine {
	engine, env := *l.engine, *l.env
	env.Store = store
	engine.Env, engine.Holder = &env, holder
	return &engine
}

// newLab returns a lab with n hosts. The first controlPlanes of them are control planes.
func newLab(t testing.TB, n, controlPlanes int) *lab {
	t.Helper()
	cfg := testenv.Config(0)
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, cs: cs, store: lifecycle.Files(t.TempDir()), fleet: &hosttest.Fleet{Dir: t.TempDir()}}
	l.fleet.Applied = l.register
	c, err := catalog.Load()
	if err != nil {
		t.Fatal(err)
	}
	files, err := c.Files(version, "amd64", plan.FileNames...)
	if err != nil {
		t.Fatal(err)
	}
	mirror := httptest.NewServer(hosttest.Mirror(files))
	t.Cleanup(mirror.Close)
	agent := filepath.Join(t.TempDir(), "orrery")
	if err := os.WriteFile(agent, []byte("the agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.env = &environment{Store: l.store, agent: agent, cache: t.TempDir()}
	l.engine = &lifecycle.Engine{
		Cluster: "oak", Env: l.env, Dialer: l.fleet, Catalog: c, Holder: "test",
		Connect: func(c host.Conn, _ int32, _ pki.Bundle) *rest.Config {
			through := rest.CopyConfig(cfg)
			up := l.isUp
			if at, ok := c.(interface{ Name() string }); ok {
				up = func(ctx context.Context) bool { return l.runs(ctx, at.Name(), "orrery-kube-apiserver") }
			}
			through.Wrap(func(next http.RoundTripper) http.RoundTripper { return answering{next: next, up: up} })
			return through
		},
	}
	l.spec = &clusterv1alpha1.Provision{
		Hosts: hosttest.Hosts(n), Source: mirror.URL,
		Kubernetes: clusterv1alpha1.Kubernetes{Version: version},
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
			clusterv1alpha1.RoleControlPlane: {fmt.Sprintf("h-[1:%d]", controlPlanes)},
		},
		Network: clusterv1alpha1.Network{KubePodsCIDR: "10.128.0.0/14", KubeServiceCIDR: "10.96.0.0/16"},
	}
	if n > controlPlanes {
		l.spec.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{fmt.Sprintf("h-[%d:%d]", controlPlanes+1, n)}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var controllers sync.WaitGroup
	controllers.Go(func() { l.control(ctx) })
	t.Cleanup(func() {
		cancel()
		controllers.Wait()
		l.cleanCluster()
	})
	return l
}

// isUp reports whether a host runs an API server. Otherwise the cluster's API server does not
// answer.
func (l *lab) isUp(ctx context.Context) bool {
	return slices.ContainsFunc(l.spec.Hosts, func(h clusterv1alpha1.Host) bool { return l.runs(ctx, h.Name, "orrery-kube-apiserver") })
}

// runs reports whether a host runs a unit.
func (l *lab) runs(ctx context.Context, name, unit string) bool {
	units, err := hosttest.Rooted(l.fleet.Root(name)).Units.Observe(ctx, []string{unit})
	if err != nil {
		l.t.Error(err)
	}
	return units[unit].Running
}

// answering lets requests pass while up returns true.
type answering struct {
	next http.RoundTripper
	up   func(context.Context) bool
}

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if !a.up(r.Context()) {
		return nil, syscall.ECONNREFUSED
	}
	return a.next.RoundTrip(r)
}

// register plays the kubelet: it creates the Node and sets it ready.
func (l *lab) register(name string, req node.Request) {
	if !slices.ContainsFunc(req.Steps, func(s plan.Step) bool { return s.Unit != nil && s.Unit.Name == "orrery-kubelet" }) {
		return
	}
	ctx := context.Background()
	fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := l.cs.CoreV1().Nodes().Create(ctx, fresh, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		l.t.Error(err)
	}
	ready := `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test"}]}}`
	if _, err := l.cs.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(ready), metav1.PatchOptions{}, "status"); err != nil {
		l.t.Error(err)
	}
}

// control plays the controllers: workloads become available. It uses informers, because polling
// took more CPU time than all tests.
func (l *lab) control(ctx context.Context) {
	factory := informers.NewSharedInformerFactory(l.cs, 0)
	deployments, sets, nodes := factory.Apps().V1().Deployments(), factory.Apps().V1().DaemonSets(), factory.Core().V1().Nodes()
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default: // it is awake
		}
	}
	for _, informer := range []cache.SharedIndexInformer{deployments.Informer(), sets.Informer(), nodes.Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() },
		}); err != nil {
			l.t.Error(err)
		}
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	factory.WaitForCacheSyncWithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		// An update fails if the object was changed in between. The informer's next event repeats it.
		for _, d := range listed(deployments.Lister()) {
			if d.Status.ObservedGeneration == d.Generation {
				continue
			}
			d = d.DeepCopy()
			d.Status = appsv1.DeploymentStatus{
				ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, UpdatedReplicas: *d.Spec.Replicas,
				ReadyReplicas: *d.Spec.Replicas, AvailableReplicas: *d.Spec.Replicas,
				Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}},
			}
			_, _ = l.cs.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
		}
		n := int32(len(listed(nodes.Lister())))
		for _, d := range listed(sets.Lister()) {
			if d.Status.ObservedGeneration == d.Generation && d.Status.NumberAvailable == n {
				continue
			}
			d = d.DeepCopy()
			d.Status = appsv1.DaemonSetStatus{
				ObservedGeneration: d.Generation, DesiredNumberScheduled: n, CurrentNumberScheduled: n,
				UpdatedNumberScheduled: n, NumberAvailable: n, NumberReady: n,
			}
			_, _ = l.cs.AppsV1().DaemonSets(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
		}
	}
}

// listed returns everything in a cache.
func listed[T any](from interface {
	List(selector labels.Selector) ([]T, error)
},
) []T {
	all, err := from.List(labels.Everything())
	if err != nil {
		panic(err) // a cache always has a list
	}
	return all
}

// cleanCluster removes the objects of a cluster from the shared API server.
func (l *lab) cleanCluster() {
	ctx := context.Background()
	all := metav1.ListOptions{}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	for _, err := range []error{
		l.cs.CoreV1().Nodes().DeleteCollection(ctx, now, all),
		l.cs.AppsV1().Deployments("kube-system").DeleteCollection(ctx, now, all),
		l.cs.AppsV1().DaemonSets("kube-flannel").DeleteCollection(ctx, now, all),
		l.cs.AppsV1().DaemonSets("kube-system").DeleteCollection(ctx, now, all),
		l.cs.CoreV1().ConfigMaps("kube-system").DeleteCollection(ctx, now, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=orrery"}),
	} {
		if err != nil {
			l.t.Error(err)
		}
	}
}

// run creates and runs an Operation.
func (l *lab) run(action lifecyclev1alpha1.Action, spec *clusterv1alpha1.Provision, set ...func(*lifecyclev1alpha1.OperationSpec)) (*lifecyclev1alpha1.Operation, error) {
	l.t.Helper()
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: action, Attempts: 1}}
	for _, s := range set {
		s(&op.Spec)
	}
	if err := l.store.Create(l.t.Context(), op); err != nil {
		return op, err
	}
	return op, l.engine.Run(l.t.Context(), op, spec)
}

// built returns a lab with a cluster.
func built(t testing.TB, n, controlPlanes int) *lab {
	t.Helper()
	l := newLab(t, n, controlPlanes)
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.fleet.Forget()
	return l
}

// must runs an Operation that has to succeed.
func (l *lab) must(action lifecyclev1alpha1.Action, spec *clusterv1alpha1.Provision, set ...func(*lifecyclev1alpha1.OperationSpec)) *lifecyclev1alpha1.Operation {
	l.t.Helper()
	defer l.patiently()()
	op, err := l.run(action, spec, set...)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.kept(op.Name)
}

// unreachable disconnects hosts.
func (l *lab) unreachable(names ...string) {
	l.fleet.Fault = func(name, _ string) error {
		if slices.Contains(names, name) {
			return &host.Unreachable{Host: name, Address: "10.77.0.0:22", Err: syscall.EHOSTUNREACH}
		}
		return nil
	}
}

// untouched checks that hosts are unchanged.
func (l *lab) untouched(before map[string]map[string]string, names ...string) {
	l.t.Helper()
	for _, name := range names {
		if d := cmp.Diff(before[name], l.tree(name)); d != "" {
			l.t.Errorf("host %s was changed: %s", name, d)
		}
	}
}

// kept returns the stored record of an Operation.
func (l *lab) kept(name string) *lifecyclev1alpha1.Operation {
	l.t.Helper()
	op, err := l.store.Operation(l.t.Context(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	return op
}

// resume runs an Operation from its record, as another process would.
func (l *lab) resume(name string) error {
	l.t.Helper()
	defer l.patiently()()
	op := l.kept(name)
	if op.Spec.Action == lifecyclev1alpha1.ActionCreate {
		l.kubelets()
	}
	return l.engine.Run(l.t.Context(), op, nil)
}

// kubelets registers the nodes of running kubelets. The run that started them may have been
// interrupted before the agent reported it.
func (l *lab) kubelets() {
	for _, h := range l.spec.Hosts {
		if l.runs(l.t.Context(), h.Name, "orrery-kubelet") {
			l.register(h.Name, node.Request{Steps: []plan.Step{{Unit: &plan.Unit{Name: "orrery-kubelet"}}}})
		}
	}
}

// tree returns the files of a host, without times and leases, which differ between runs.
func (l *lab) tree(name string) map[string]string {
	l.t.Helper()
	root := l.fleet.Root(name)
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := strings.TrimPrefix(path, root)
		info, err := d.Info()
		if err != nil {
			return err
		}
		if strings.HasPrefix(at, node.Dir) {
			return nil
		}
		content := ""
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(b)
		}
		files[at] = info.Mode().String() + " " + content
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return files
}

func (l *lab) trees() map[string]map[string]string {
	trees := map[string]map[string]string{}
	for _, h := range l.spec.Hosts {
		trees[h.Name] = l.tree(h.Name)
	}
	return trees
}

func TestCreateApplyDelete(t *testing.T) {
	l := newLab(t, 5, 3)
	op, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
	if err != nil {
		t.Fatal(err)
	}
	kept := l.kept(op.Name)
	if kept.Status.Phase != lifecyclev1alpha1.PhaseSucceeded || kept.Status.StepsDone != kept.Status.StepsTotal || kept.Status.StepsDone == 0 {
		t.Errorf("record: phase %s, %d of %d steps", kept.Status.Phase, kept.Status.StepsDone, kept.Status.StepsTotal)
	}
	for _, s := range kept.Status.Steps {
		if s.State != lifecyclev1alpha1.StepChanged && s.State != lifecyclev1alpha1.StepUnchanged || s.Finished.IsZero() || s.Attempt != 1 {
			t.Errorf("step %+v", s)
		}
		if s.Host != "cluster" && s.InputHash == "" {
			t.Errorf("step %s of %s has no input hash", s.ID, s.Host)
		}
	}
	const maxTrips = 12
	for _, h := range l.spec.Hosts {
		commands := l.fleet.Commands(h.Name)
		leased := slices.Index(commands, "lease")
		trips := 0
		for i, command := range commands {
			if command != "lease" || i == leased { // a run that takes long extends its leases
				trips++
			}
		}
		if trips > maxTrips {
			t.Errorf("host %s: %d round trips: %v", h.Name, trips, commands)
		}
	}
	for digest, n := range l.fleet.Sent() {
		if n > 2 {
			t.Errorf("%s was sent %d times from here", digest, n)
		}
	}
	before := l.trees()
	if len(before["h-5"]) == 0 {
		t.Fatal("nothing is on host h-5")
	}

	l.fleet.Forget()
	op, err = l.run(lifecyclev1alpha1.ActionApply, l.spec)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, l.trees()); d != "" {
		t.Errorf("an apply with nothing to do changed hosts: %s", d)
	}
	for _, h := range l.spec.Hosts {
		if d := cmp.Diff([]string{"facts"}, l.fleet.Commands(h.Name)); d != "" {
			t.Errorf("host %s: %s", h.Name, d)
		}
	}
	for _, s := range l.kept(op.Name).Status.Steps {
		if s.State != lifecyclev1alpha1.StepUnchanged {
			t.Errorf("step %+v", s)
		}
	}

	if _, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec); err != nil {
		t.Fatal(err)
	}
	for name, tree := range l.trees() {
		delete(tree, "")
		delete(tree, "/opt")
		for path := range tree {
			t.Errorf("host %s: %s is left", name, path)
		}
	}
	if s, err := l.store.Load(t.Context(), "oak"); err != nil || s != nil {
		t.Errorf("the state is left: %v %v", s != nil, err)
	}
}

func TestPlanHash(t *testing.T) {
	l := newLab(t, 1, 1)
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.run(lifecyclev1alpha1.ActionCreate, l.spec, func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = strings.Repeat("0", 32) })
	if err == nil || !strings.Contains(err.Error(), "orrery cluster plan") {
		t.Errorf("a run with the hash of another plan: %v", err)
	}
	if commands := l.fleet.Commands("h-1"); slices.Contains(commands, "apply") {
		t.Errorf("it did something: %v", commands)
	}
	if _, err = l.run(lifecyclev1alpha1.ActionCreate, l.spec, func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = changes.Hash }); err != nil {
		t.Errorf("a run with the hash that was shown: %v", err)
	}
	_, changes, err = l.engine.Plan(t.Context(), l.spec)
	if err != nil || len(changes.Items) != 0 {
		t.Errorf("there is still something to do: %v %v", changes, err)
	}
}

// TestPlanHashOfAll: a plan is done completely or not at all, and the error names unreachable
// hosts.
func TestPlanHashOfAll(t *testing.T) {
	l := built(t, 2, 1)
	spec := l.maxPods(70)
	_, changes, err := l.engine.Plan(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	planned := func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = changes.Hash }
	before := l.trees()
	l.unreachable("h-2")
	_, err = l.run(lifecyclev1alpha1.ActionApply, spec, planned)
	says(t, err, changes.Hash, "nothing of it is done", "host h-2: unreachable")
	if d := cmp.Diff(before, l.trees()); d != "" {
		t.Errorf("hosts were changed (-before +now):\n%s", d)
	}
	l.unreachable()
	l.must(lifecyclev1alpha1.ActionApply, spec, planned)
}
