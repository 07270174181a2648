package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/apply"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/placement"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/testenv"
)

const deadline = 3 * time.Minute

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, 2) // a hub and a member
}

// scheduled stands for a placement that scheduled everything.
type scheduled struct{}

func (scheduled) Outcome(types.UID) (placement.Outcome, bool) {
	return placement.Outcome{Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonScheduled, Generation: 1}, true
}

func (scheduled) DeletionWait(types.UID) string { return "" }

// Knows is true: each decision was made with the current fleet.
func (scheduled) Knows(types.UID, int64, string, types.UID) bool { return true }

func (scheduled) Subscribe(func(types.NamespacedName)) {}

// counting counts the requests that write in a namespace.
type counting struct {
	next   http.RoundTripper
	writes *writes
}

// writes are numbers of requests by namespace.
type writes struct {
	mu sync.Mutex
	to map[string]int
}

func (w *writes) in(namespace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to[namespace]
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, path, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok && r.Method != http.MethodGet {
		namespace, _, _ := strings.Cut(path, "/")
		c.writes.mu.Lock()
		c.writes.to[namespace]++
		c.writes.mu.Unlock()
	}
	return c.next.RoundTrip(r)
}

// fleet is a hub with its members, and the packages that status works with.
type fleet struct {
	t      *testing.T
	scheme *runtime.Scheme
	hub    client.Client
	hubID  string
	dir    string
	// recorded is the directory of the records.
	recorded string
	writes   writes
	stop     func()
	// loses makes a cluster count as unreachable soon after hang.
	loses bool
	// stopped is the address of the API server that hang has stopped; nil: none. New connections to
	// it fail at once, so no short limit for answers is necessary to lose the cluster.
	stopped atomic.Pointer[string]

	registry *member.Registry
	mirror   *mirror.Mirror
	applier  *apply.Applier
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, scheme: runtime.NewScheme(), dir: t.TempDir(), recorded: t.TempDir(), writes: writes{to: map[string]int{}}}
	f.must(errors.Join(
		clientgoscheme.AddToScheme(f.scheme), clusterv1alpha1.AddToScheme(f.scheme),
		policyv1alpha1.AddToScheme(f.scheme), workv1alpha2.AddToScheme(f.scheme),
		testenv.InstallCRDs(testenv.Config(0)),
	))
	testenv.Leftovers(t, testenv.Config(0))
	f.hub = f.client(testenv.Config(0))
	system := &corev1.Namespace{}
	f.must(f.hub.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	f.hubID = string(system.UID)
	return f
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) client(cfg *rest.Config) client.Client {
	f.t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: f.scheme})
	f.must(err)
	return c
}

// start runs the packages as orrery server does. The field stop ends them.
func (f *fleet) start() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cfg := testenv.Config(0)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, &f.writes} })
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: f.scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	f.must(err)
	db, err := store.Open(ctx, f.dir)
	f.must(err)
	kept, err := records.Open(ctx, f.recorded, logr.Discard())
	f.must(err)
	f.must(mgr.Add(kept))
	// A cluster that answers late on a busy machine stays reachable, also with loses. Probes of a
	// stopped cluster fail at once, except the first one.
	probes := member.Probes{Interval: time.Second, Timeout: time.Minute, Failures: 60}
	if f.loses {
		probes = member.Probes{Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Failures: 50}
	}
	f.registry, err = member.Add(mgr, member.Options{
		HubID: f.hubID,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if of := f.stopped.Load(); of != nil && *of == address {
				return nil, errors.New("it is stopped")
			}
			return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
		},
		Observe: func(cluster string) member.Observation { return f.mirror.Observation(cluster) },
		Departures: []member.Departure{
			{Inside: func(ctx context.Context, m *member.Member) error { return f.applier.Leave(ctx, m) }},
			{Outside: func(_ context.Context, o *clusterv1alpha1.Cluster) error { return f.mirror.Drop(o.Name) }},
		},
		ProbeInterval: probes.Interval, ProbeTimeout: probes.Timeout, FailureThreshold: probes.Failures,
	})
	f.must(err)
	f.mirror = mirror.New(db, f.registry, nil, logr.Discard())
	f.must(mgr.Add(manager.RunnableFunc(f.mirror.Start)))
	templates, err := template.New(mgr)
	f.must(err)
	f.must(templates.Watch(appsv1.SchemeGroupVersion.WithKind("Deployment")))
	f.must(templates.Watch(batchv1.SchemeGroupVersion.WithKind("Job")))
	bindings, err := binding.NewCache(ctx, mgr.GetCache())
	f.must(err)
	f.applier, err = apply.Add(mgr, apply.Options{
		Bindings: bindings, Registry: f.registry, Mirror: f.mirror, Templates: templates,
		Decisions: scheduled{}, Records: kept, HubID: f.hubID,
	})
	f.must(err)
	f.must((&writer{
		hub: mgr.GetClient(), events: mgr.GetEventRecorder("orrery"), placement: scheduled{}, applier: f.applier,
		mirror: f.mirror, registry: f.registry, templates: templates, bindings: bindings,
	}).add(mgr))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, kept.Close(), db.Close()); err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(f.stop)
}

func (f *fleet) join(name string, kubeconfig []byte) {
	f.t.Helper()
	f.eventually(name+" is joined", func() error {
		_, err := member.Join(f.t.Context(), f.hub, member.JoinOptions{Name: name, Kubeconfig: kubeconfig, HubID: f.hubID})
		if refused, ok := errors.AsType[*member.JoinError](err); ok && (refused.Reason == clusterv1alpha1.ReasonUnreachable || refused.Reason == member.ReasonNotConfirmed) {
			return err // it did not answer in time
		}
		f.must(err)
		return nil
	})
	f.eventually(name+" is reachable", func() error {
		if m, ok := f.registry.Member(name); !ok || !m.Reachable() {
			return errors.New("it is not")
		}
		return nil
	})
}

// hang stops the API server of a cluster until resume is called. Requests on open connections hang,
// and no new connection is opened.
func (f *fleet) hang(s *testenv.Server) (resume func()) {
	f.t.Helper()
	f.stopped.Store(new(strings.TrimPrefix(s.Config().Host, "https://")))
	s.Signal(f.t, syscall.SIGSTOP)
	return func() {
		f.t.Helper()
		s.Signal(f.t, syscall.SIGCONT)
		f.stopped.Store(nil)
	}
}

func (f *fleet) eventually(what string, check func() error) {
	f.t.Helper()
	end := time.Now().Add(deadline)
	err := check()
	for err != nil {
		if time.Now().After(end) {
			f.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
		err = check()
	}
}

// template returns a Deployment of two replicas.
func (f *fleet) template(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
			},
		},
	}
}

// deploy creates a Deployment and its binding on the hub.
func (f *fleet) deploy(ns, name string, clusters ...string) *workv1alpha2.ResourceBinding {
	f.t.Helper()
	d := f.template(name)
	d.Namespace = ns
	f.must(f.hub.Create(f.t.Context(), d))
	return f.deployed(d, clusters...)
}

// deployed creates the binding of a Deployment on the hub.
func (f *fleet) deployed(d *appsv1.Deployment, clusters ...string) *workv1alpha2.ResourceBinding {
	f.t.Helper()
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-deployment", Finalizers: []string{workv1alpha2.Finalizer}},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Generation: d.Generation},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
			Replicas:  new(int32(2)),
		},
	}
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c, Replicas: new(int32(2))})
	}
	f.must(f.hub.Create(f.t.Context(), b))
	return b
}

// edit changes a template, and its generation in the binding, as placement does. It patches
// both, because their status may be written in between.
func (f *fleet) edit(b *workv1alpha2.ResourceBinding) *appsv1.Deployment {
	f.t.Helper()
	d := &appsv1.Deployment{}
	f.must(f.hub.Get(f.t.Context(), client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Resource.Name}, d))
	template := client.MergeFrom(d.DeepCopy())
	d.Spec.Template.Spec.Containers[0].Image += "x"
	f.must(f.hub.Patch(f.t.Context(), d, template))
	f.must(f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b))
	decision := client.MergeFrom(b.DeepCopy())
	b.Spec.Resource.Generation = d.Generation
	f.must(f.hub.Patch(f.t.Context(), b, decision))
	return d
}

// warnings returns the events of a namespace on the hub, sorted, as KIND REASON.
func (f *fleet) warnings(ns string) []string {
	f.t.Helper()
	var events eventsv1.EventList
	f.must(f.hub.List(f.t.Context(), &events, client.InNamespace(ns)))
	var said []string
	for _, e := range events.Items {
		said = append(said, e.Regarding.Kind+" "+e.Reason)
	}
	slices.Sort(said)
	return said
}

// runs waits for a Deployment in a member, and sets its status to all replicas running.
func (f *fleet) runs(c client.Client, ns, name string) {
	f.t.Helper()
	f.eventually("the replicas of "+name+" run", func() error {
		d := &appsv1.Deployment{}
		if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: ns, Name: name}, d); err != nil {
			return err
		}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
		return c.Status().Update(f.t.Context(), d)
	})
}

// condition waits until a condition of a binding has a status and a reason.
func (f *fleet) condition(b *workv1alpha2.ResourceBinding, kind string, status metav1.ConditionStatus, reason string) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%s is %s/%s", kind, status, reason), func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(b.Status.Conditions, kind); c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

func TestStatus(t *testing.T) {
	slow := testenv.StartServer(t)
	f := newFleet(t)
	f.loses = true
	f.start()
	f.join("oak", testenv.Kubeconfig(1))
	f.join("bog", slow.Kubeconfig())
	oak, bog := f.client(testenv.Config(1)), f.client(slow.Config())
	var ns string
	var b *workv1alpha2.ResourceBinding
	for attempt := 1; ; attempt++ {
		ns = testenv.Namespace(t, testenv.Config(0))
		b = f.deploy(ns, "a", "oak", "bog")
		f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
		f.condition(b, workv1alpha2.ConditionScheduled, metav1.ConditionTrue, workv1alpha2.ReasonScheduled)
		made := f.writes.in(ns)
		if made <= 2 {
			break
		}
		// A cluster that answers later than the others by more than patience causes more
		// writes. This can happen on a busy machine, but not with each Deployment.
		if attempt == 5 {
			t.Fatalf("%d writes to the hub, want at most 2: the binding's status and the template's", made)
		}
	}

	f.runs(oak, ns, "a")
	f.runs(bog, ns, "a")
	f.condition(b, workv1alpha2.ConditionHealthy, metav1.ConditionTrue, workv1alpha2.ReasonHealthy)
	f.eventually("the template's status adds up", func() error {
		d := &appsv1.Deployment{}
		if err := f.hub.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, d); err != nil {
			return err
		}
		if d.Status.ReadyReplicas != 4 || d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("it is %+v", d.Status)
		}
		return nil
	})
	body, err := json.Marshal(b)
	f.must(err)
	d := &appsv1.Deployment{}
	f.must(f.hub.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, d))
	grown, err := json.Marshal(d.Status)
	f.must(err)
	for _, m := range d.ManagedFields {
		if m.Manager == workv1alpha2.FieldManager {
			grown = append(grown, m.FieldsV1.GetRawBytes()...)
		}
	}
	t.Logf("a binding in two clusters is %d bytes of JSON, its template grows by about %d", len(body), len(grown))

	// Events about a failure are recorded once, for the template and for the binding.
	foreign := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}, Spec: f.template("c").Spec}
	foreign.Spec.Template.Spec.Containers[0].Image = "theirs" // an equal object would be adopted
	f.must(oak.Create(t.Context(), foreign))
	refused := f.deploy(ns, "c", "oak")
	f.condition(refused, workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonConflict)
	expected := []string{"Deployment Conflict", "ResourceBinding Conflict"}
	f.eventually("the conflict is reported", func() error {
		if diff := cmp.Diff(expected, f.warnings(ns)); diff != "" {
			return errors.New(diff)
		}
		return nil
	})

	// If nothing changes, neither this process nor the next one writes.
	f.quiet("before the restart", b)
	f.stop()
	f.start()
	f.eventually("every result is known", func() error {
		for _, c := range []string{"oak", "bog"} {
			if r, ok := f.applier.Result(b.UID, c); !ok || !r.Applied {
				return fmt.Errorf("%s: %+v", c, r)
			}
		}
		return nil
	})
	f.quiet("after the restart", b)
	if diff := cmp.Diff(expected, f.warnings(ns)); diff != "" {
		t.Errorf("events after the restart (-want +got):\n%s", diff)
	}

	// The health in a cluster that hangs is Unknown, and its last status is kept.
	written := b.Status.DeepCopy()
	resume := f.hang(slow)
	f.condition(b, workv1alpha2.ConditionHealthy, metav1.ConditionUnknown, workv1alpha2.ReasonClusterUnreachable)
	f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
	want := written.AggregatedStatus
	want[0].Health = workv1alpha2.ResourceUnknown
	if diff := cmp.Diff(want, b.Status.AggregatedStatus); diff != "" {
		t.Errorf("status of a cluster that hangs (-want +got):\n%s", diff)
	}

	// A restart does not change that status. A deletion that waits for the cluster does not
	// call it.
	version := b.ResourceVersion
	f.stop()
	f.start()
	other := f.deploy(ns, "b", "oak", "bog")
	f.condition(other, workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonClusterUnreachable)
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	if b.ResourceVersion != version {
		t.Errorf("a restart beside a cluster that hangs wrote %+v", b.Status)
	}
	f.must(f.hub.Delete(t.Context(), other))
	f.eventually("the deleted binding says what it waits for", func() error {
		if err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil {
			return err
		}
		message := meta.FindStatusCondition(other.Status.Conditions, workv1alpha2.ConditionFullyApplied).Message
		if !strings.HasPrefix(message, "deleted") || !strings.HasSuffix(message, ": bog") {
			return fmt.Errorf("it says %q", message)
		}
		return nil
	})
	// An edit that one cluster does not have is not rolled out, though nothing is known of the
	// cluster since the restart.
	d = f.edit(b)
	f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionFalse, workv1alpha2.ReasonClusterUnreachable)
	f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	if d.Status.ObservedGeneration != d.Generation-1 {
		t.Errorf("the template of generation %d says that %d is rolled out", d.Generation, d.Status.ObservedGeneration)
	}

	resume()
	f.condition(b, workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
	f.runs(oak, ns, "a")
	f.runs(bog, ns, "a")
	f.eventually("the edit is rolled out", func() error {
		f.must(f.hub.Get(t.Context(), client.ObjectKeyFromObject(d), d))
		if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != 4 {
			return fmt.Errorf("it is %+v", d.Status)
		}
		return nil
	})
	f.condition(b, workv1alpha2.ConditionHealthy, metav1.ConditionTrue, workv1alpha2.ReasonHealthy)

	for _, name := range []string{"oak", "bog"} {
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.must(f.hub.Delete(t.Context(), c))
		f.eventually(name+" has left", func() error {
			err := f.hub.Get(t.Context(), client.ObjectKeyFromObject(c), c)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it has not"))
		})
	}
}

// quiet checks that a binding is not written while other bindings are created and applied. A
// wrong write would happen in that time.
func (f *fleet) quiet(when string, b *workv1alpha2.ResourceBinding) {
	f.t.Helper()
	version := b.ResourceVersion
	for i := range 8 {
		other := f.deploy(b.Namespace, fmt.Sprintf("%s-%d", strings.ReplaceAll(when, " ", "-"), i), "oak", "bog")
		f.condition(other, workv1alpha2.ConditionFullyApplied, metav1.ConditionTrue, workv1alpha2.ReasonFullyApplied)
	}
	f.must(f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b))
	if b.ResourceVersion != version {
		f.t.Errorf("%s: the binding was written although nothing changed", when)
	}
}
