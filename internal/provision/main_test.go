package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/testenv"
)

// Server 0 is the hub. Server 1 is the cluster that is built.
func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Println(prefix, args) }, funcr.Options{LogTimestamp: true}))
	testenv.Main(m, 2)
}

// patience is the longest time that a test waits for an expected result. No test checks how long it
// takes.
const patience = 3 * time.Minute

// hub is a hub with the controllers of Clusters and Operations, and an engine that only records
// what it would do.
type hub struct {
	client.Client

	dataDir string
	real    bool // the engine is that of package lifecycle
	stop    func()
	clock   clock.WithTicker // nil for the clock of the machine

	mu   sync.Mutex
	runs []string // what was run: action, cluster and hosts
	act  func(context.Context, *fakeEngine, *lifecyclev1alpha1.Operation, *clusterv1alpha1.Provision) error
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1alpha1.AddToScheme(scheme), lifecyclev1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	if err := testenv.InstallCRDs(testenv.Config(0)); err != nil {
		t.Fatal(err)
	}
	testenv.Leftovers(t, testenv.Config(0))
	c, err := client.New(testenv.Config(0), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace of the hub is there", func() (bool, string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
		err := c.Create(t.Context(), ns)
		return err == nil || apierrors.IsAlreadyExists(err), fmt.Sprint(err)
	})
	return c
}

// newHub makes a hub that does not run yet. The hub is emptied when the test ends.
func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{Client: newClient(t), dataDir: t.TempDir(), stop: func() {}}
	t.Cleanup(func() {
		h.stop()
		ctx := context.WithoutCancel(t.Context())
		testenv.Eventually(t, "the hub is emptied", patience, func() error {
			clusters := &clusterv1alpha1.ClusterList{}
			errs := []error{h.List(ctx, clusters)}
			for i := range clusters.Items {
				patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
				errs = append(errs, client.IgnoreNotFound(h.Patch(ctx, &clusters.Items[i], patch)))
			}
			for _, o := range []client.Object{&clusterv1alpha1.Cluster{}, &lifecyclev1alpha1.Operation{}, &lifecyclev1alpha1.OperationSlice{}} {
				errs = append(errs, h.DeleteAllOf(ctx, o))
			}
			errs = append(errs, h.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(clusterv1alpha1.SecretNamespace)))
			return errors.Join(errs...)
		})
	})
	return h
}

// startHub runs a hub until the test ends.
func startHub(t *testing.T) *hub {
	t.Helper()
	h := newHub(t)
	h.start(t)
	return h
}

func (h *hub) start(t *testing.T) {
	t.Helper()
	mgr, err := ctrl.NewManager(testenv.Config(0), ctrl.Options{
		Scheme: h.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		Cache:      cache.Options{ByObject: map[client.Object]cache.ByObject{&lifecyclev1alpha1.Operation{}: {Transform: Trim}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var p *Provisioner
	registry, err := member.Add(mgr, member.Options{
		ProbeInterval: 100 * time.Millisecond, DiscoveryInterval: time.Second,
		Provision: func(ctx context.Context, o *clusterv1alpha1.Cluster) error { return p.Provision(ctx, o) },
		Departures: []member.Departure{
			{Outside: func(ctx context.Context, o *clusterv1alpha1.Cluster) error { return p.Dismantle(ctx, o) }},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	options := Options{DataDir: h.dataDir, Refresh: registry.Refresh, Clock: h.clock}
	if !h.real {
		options.Engine = func(cluster string, env lifecycle.Environment) Runner {
			return &fakeEngine{Environment: env, cluster: cluster, hub: h}
		}
	}
	p, err = Add(mgr, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// onRun sets what the engine does between the first and the last record.
func (h *hub) onRun(act func(context.Context, *fakeEngine, *lifecyclev1alpha1.Operation, *clusterv1alpha1.Provision) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.act = act
}

// ran returns all runs so far.
func (h *hub) ran() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.runs...)
}

// fakeEngine uses the Store as lifecycle.Engine does, and changes no host.
type fakeEngine struct {
	lifecycle.Environment

	cluster string
	hub     *hub
}

func (e *fakeEngine) Run(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) (err error) {
	unlock, err := e.Lock(ctx, e.cluster)
	if err != nil {
		return err
	}
	defer unlock()
	op.Status.Attempt++
	op.Status.Phase, op.Status.Finished = lifecyclev1alpha1.PhaseRunning, nil
	if err := e.Record(ctx, op); err != nil {
		return err
	}
	e.hub.mu.Lock()
	e.hub.runs = append(e.hub.runs, fmt.Sprintf("%s %s %v attempt %d on %d hosts", op.Name, op.Spec.Action, op.Spec.NamedHosts(), op.Status.Attempt, len(spec.Hosts)))
	act := e.hub.act
	e.hub.mu.Unlock()
	if act == nil {
		act = func(ctx context.Context, e *fakeEngine, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
			return e.apply(ctx, op, spec)
		}
	}
	err = act(ctx, e, op, spec)
	now := metav1.NowMicro()
	op.Status.Finished = &now
	switch {
	case err == nil:
		op.Status.Phase, op.Status.Message = lifecyclev1alpha1.PhaseSucceeded, ""
	case errors.Is(err, lifecycle.ErrCanceled):
		op.Status.Phase = lifecyclev1alpha1.PhaseCanceled
	case errors.Is(err, lifecycle.ErrPaused), errors.Is(err, context.Canceled):
		op.Status.Phase, op.Status.Finished = lifecyclev1alpha1.PhasePaused, nil
		err = lifecycle.ErrPaused
	default:
		op.Status.Phase, op.Status.Message = lifecyclev1alpha1.PhaseFailed, err.Error()
	}
	return errors.Join(err, e.Record(context.WithoutCancel(ctx), op))
}

// apply does what a successful run does.
func (e *fakeEngine) apply(ctx context.Context, op *lifecyclev1alpha1.Operation, spec *clusterv1alpha1.Provision) error {
	for _, state := range []lifecyclev1alpha1.StepState{lifecyclev1alpha1.StepRunning, lifecyclev1alpha1.StepChanged} {
		op.Status.Hosts = []lifecyclev1alpha1.HostRun{{Name: spec.Hosts[0].Name, Stage: "prepare", State: state}}
		e.Progress(*op, lifecyclev1alpha1.StepRecord{Host: spec.Hosts[0].Name, ID: "system/sysctl", State: state})
		if err := e.Record(ctx, op); err != nil {
			return err
		}
	}
	if op.Spec.Action == lifecyclev1alpha1.ActionDelete {
		state, err := e.Load(ctx, e.cluster)
		if err != nil {
			return err
		}
		return e.Remove(ctx, state)
	}
	plan.Default(e.cluster, spec)
	if err := e.Built(ctx, testenv.Kubeconfig(1), spec.Join, func(context.Context) (*rest.Config, error) { return testenv.Config(1), nil }); err != nil {
		return err
	}
	state, err := e.Load(ctx, e.cluster)
	if err != nil {
		return err
	}
	if state == nil {
		state = &lifecycle.State{Cluster: e.cluster}
	}
	state.Wanted, state.WantedBy, state.Applied = spec, op.Name, spec
	return e.Save(ctx, state)
}

// waitAsked waits until the run is paused, canceled or interrupted.
func (e *fakeEngine) waitAsked(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		return op.Spec.Paused || op.Spec.Canceled, e.Record(ctx, op)
	})
	switch {
	case ctx.Err() != nil:
		return context.Canceled
	case err != nil:
		return err
	case op.Spec.Canceled:
		return lifecycle.ErrCanceled
	}
	return lifecycle.ErrPaused
}

// eventually waits until a condition holds. The text what names the condition.
func eventually(t *testing.T, what string, condition func() (bool, string)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (ok bool, _ error) {
		ok, last = condition()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("waited in vain until %s; last seen: %s", what, last)
	}
}

// until waits until a condition of a Cluster has a status and a reason.
func (h *hub) until(t *testing.T, name, condition string, status metav1.ConditionStatus, reason string) *clusterv1alpha1.Cluster {
	t.Helper()
	o := &clusterv1alpha1.Cluster{}
	eventually(t, fmt.Sprintf("%s of %s is %s/%s", condition, name, status, reason), func() (bool, string) {
		if err := h.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
			return false, err.Error()
		}
		got := meta.FindStatusCondition(o.Status.Conditions, condition)
		return got != nil && got.Status == status && got.Reason == reason, fmt.Sprintf("%v; ran %q", o.Status.Conditions, h.ran())
	})
	return o
}

// untilPhase waits until an Operation is in a phase.
func (h *hub) untilPhase(t *testing.T, name string, phase lifecyclev1alpha1.Phase) *lifecyclev1alpha1.Operation {
	t.Helper()
	op := &lifecyclev1alpha1.Operation{}
	eventually(t, fmt.Sprintf("operation %s is %s", name, phase), func() (bool, string) {
		if err := h.Get(t.Context(), client.ObjectKey{Name: name}, op); err != nil {
			return false, err.Error()
		}
		return op.Status.Phase == phase, fmt.Sprintf("%s: %s", op.Status.Phase, op.Status.Message)
	})
	return op
}

// untilGone waits until an object does not exist.
func (h *hub) untilGone(t *testing.T, o client.Object) {
	t.Helper()
	eventually(t, fmt.Sprintf("%T %s is gone", o, o.GetName()), func() (bool, string) {
		err := h.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), fmt.Sprintf("%v; ran %q", o, h.ran())
	})
}

// cluster returns a Cluster to be built. Hosts are named by the last number of their addresses;
// host 1 is the control plane.
func cluster(name string, hosts ...int) *clusterv1alpha1.Cluster {
	return &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       clusterv1alpha1.ClusterSpec{Provision: provision(hosts...)},
	}
}

func provision(hosts ...int) *clusterv1alpha1.Provision {
	spec := &clusterv1alpha1.Provision{
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleControlPlane: {"host-1"}},
		Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
	}
	for _, n := range hosts {
		h := clusterv1alpha1.Host{
			Name: fmt.Sprintf("host-%d", n), Address: fmt.Sprintf("10.0.0.%d", n),
			SecretRef: &clusterv1alpha1.SecretReference{Namespace: "default", Name: "ssh"},
		}
		spec.Hosts = append(spec.Hosts, h)
		spec.RoleGroups[clusterv1alpha1.RoleWorker] = append(spec.RoleGroups[clusterv1alpha1.RoleWorker], h.Name)
	}
	return spec
}

// change changes the spec of a Cluster.
func (h *hub) change(t *testing.T, name string, change func(*clusterv1alpha1.ClusterSpec)) {
	t.Helper()
	eventually(t, "cluster "+name+" is changed", func() (bool, string) {
		o := &clusterv1alpha1.Cluster{}
		if err := h.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
			return false, err.Error()
		}
		change(&o.Spec)
		err := h.Update(t.Context(), o)
		return err == nil, fmt.Sprint(err)
	})
}

func (h *hub) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		tried := false
		eventually(t, fmt.Sprintf("%T %s is created", o, o.GetName()), func() (bool, string) {
			err := h.Create(t.Context(), o)
			if tried && apierrors.IsAlreadyExists(err) { // an earlier answer was lost
				err = h.Get(t.Context(), client.ObjectKeyFromObject(o), o)
			}
			if apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) {
				t.Fatal(err)
			}
			tried = true
			return err == nil, fmt.Sprint(err)
		})
	}
}

// delete deletes an object that must be there.
func (h *hub) delete(t *testing.T, o client.Object) {
	t.Helper()
	tried := false
	eventually(t, fmt.Sprintf("%T %s is deleted", o, o.GetName()), func() (bool, string) {
		err := h.Delete(t.Context(), o)
		if apierrors.IsNotFound(err) {
			if !tried {
				t.Fatal(err)
			}
			return true, "" // the attempt before was done, and its answer was lost
		}
		tried = true
		return err == nil, fmt.Sprint(err)
	})
}
