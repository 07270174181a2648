package apply

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/store"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/testenv"
)

// The API servers: a hub and two members.
const (
	hubServer = iota
	oakServer
	elmServer
	servers
)

var secretResource = schema.GroupResource{Resource: "secrets"}

const deadline = 3 * time.Minute

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, servers)
}

// source is a template cache that the test fills.
type source struct {
	mu          sync.Mutex
	all         map[string]*unstructured.Unstructured
	version     int
	subscribers []func(template.Event)
}

func sourceKey(gvk schema.GroupVersionKind, namespace, name string) string {
	return fmt.Sprint(gvk, namespace, "/", name)
}

func (s *source) Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, presence.Presence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.all[sourceKey(gvk, namespace, name)]; ok {
		return o, presence.Present
	}
	return nil, presence.Absent
}

// Deletion implements templates. Bindings of the tests carry the propagation themselves.
func (s *source) Deletion(types.UID) metav1.DeletionPropagation { return "" }

func (s *source) Subscribe(f func(template.Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, f)
}

// set stores a template and notifies the subscribers. Each change has its own resourceVersion,
// as on a hub.
func (s *source) set(o *unstructured.Unstructured) {
	s.mu.Lock()
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	s.all[sourceKey(o.GroupVersionKind(), o.GetNamespace(), o.GetName())] = o
	subscribers := s.subscribers
	s.mu.Unlock()
	for _, f := range subscribers {
		f(template.Event{GVK: o.GroupVersionKind(), Namespace: o.GetNamespace(), Name: o.GetName()})
	}
}

// decisions knows every Cluster, except those that a test puts into unknown.
type decisions struct {
	mu          sync.Mutex
	unknown     map[types.UID]bool
	subscribers []func(types.NamespacedName)
}

func (d *decisions) Knows(_ types.UID, _ int64, _ string, cluster types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.unknown[cluster]
}

func (d *decisions) Subscribe(f func(types.NamespacedName)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subscribers = append(d.subscribers, f)
}

// memory keeps records across restarts of the fleet.
type memory struct {
	mu      sync.Mutex
	results map[types.UID]map[string]records.Result
}

func newMemory() *memory { return &memory{results: map[types.UID]map[string]records.Result{}} }

func (m *memory) Decided(records.Decision) {}

func (m *memory) Applied(results ...records.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range results {
		if m.results[r.Binding] == nil {
			m.results[r.Binding] = map[string]records.Result{}
		}
		m.results[r.Binding][r.Cluster] = r
	}
}

func (m *memory) ForgetBinding(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.results, uid)
}

func (m *memory) ForgetCluster(cluster string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, clusters := range m.results {
		delete(clusters, cluster)
	}
}

func (m *memory) Decisions(context.Context, types.UID, int) ([]records.Decision, error) {
	return nil, nil
}

func (m *memory) Results(_ context.Context, uid types.UID) ([]records.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.results[uid])), nil
}

func (m *memory) AllResults(ctx context.Context) iter.Seq2[records.Result, error] {
	m.mu.Lock()
	var all []records.Result
	for uid := range m.results {
		all = append(all, slices.Collect(maps.Values(m.results[uid]))...)
	}
	m.mu.Unlock()
	return func(yield func(records.Result, error) bool) {
		for _, r := range all {
			if !yield(r, ctx.Err()) {
				return
			}
		}
	}
}

// outdated is a mirror that is behind: the first lookup of each hidden object finds nothing,
// unless the object is a copy.
type outdated struct {
	*mirror.Mirror

	mu     sync.Mutex
	hidden map[string]bool
}

func (o *outdated) hide(cluster, namespace, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hidden[cluster+"/"+namespace+"/"+name] = true
}

func (o *outdated) hides() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.hidden) > 0
}

func (o *outdated) Lookup(cluster string, gr schema.GroupResource, namespace, name string) (presence.Presence, mirror.Object) {
	is, object := o.Mirror.Lookup(cluster, gr, namespace, name)
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := cluster + "/" + namespace + "/" + name; is == presence.Present && !object.Placed() && o.hidden[key] {
		delete(o.hidden, key)
		return presence.Absent, mirror.Object{}
	}
	return is, object
}

// fleet is a hub with its members, and the packages that apply works with.
type fleet struct {
	t         *testing.T // the test or subtest that runs
	whole     *testing.T
	scheme    *runtime.Scheme
	hub       client.Client
	hubID     string
	dir       string
	templates *source
	decisions *decisions
	records   *memory
	spread    Spread
	fences    *fences
	tunnel    member.Tunnel
	now       func() time.Time // nil: time.Now
	loses     bool             // clusters stop answering, and have to count as unreachable soon
	// How long a member may take to answer; 0: as in the product.
	answerPatience time.Duration

	applier  *Applier
	registry *member.Registry
	mirror   *mirror.Mirror
	outdated *outdated        // the mirror as the applier sees it
	clock    func() time.Time // of the restore check; nil: time.Now
	stop     func()
	writes   atomic.Int64                         // number of writes of bindings
	observe  atomic.Pointer[func(cluster string)] // called when a Cluster is reconciled
}

// counting counts the requests that change bindings.
type counting struct {
	next   http.RoundTripper
	writes *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "resourcebindings") {
		c.writes.Add(1)
	}
	return c.next.RoundTrip(r)
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	testenv.Leftovers(t, testenv.Config(hubServer))
	f := &fleet{t: t, whole: t, scheme: runtime.NewScheme(), dir: t.TempDir(), templates: &source{all: map[string]*unstructured.Unstructured{}}, decisions: &decisions{}, records: newMemory()}
	f.must(errors.Join(
		clientgoscheme.AddToScheme(f.scheme), clusterv1alpha1.AddToScheme(f.scheme),
		policyv1alpha1.AddToScheme(f.scheme), workv1alpha2.AddToScheme(f.scheme),
		testenv.InstallCRDs(testenv.Config(hubServer)),
	))
	f.hub = f.client(testenv.Config(hubServer))
	system := &corev1.Namespace{}
	f.must(f.hub.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	f.hubID = string(system.UID)
	return f
}

func (f *fleet) client(cfg *rest.Config) client.Client {
	f.t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: f.scheme})
	f.must(err)
	return c
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// cleared deletes an object of the hub when the running test ends.
func (f *fleet) cleared(o client.Object) {
	f.t.Cleanup(func() {
		if err := client.IgnoreNotFound(f.hub.Delete(context.Background(), o)); err != nil {
			f.whole.Error(err)
		}
	})
}

// join joins a cluster and waits until it is reachable. It tries again if the cluster does not
// answer in time.
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
	f.eventually(name+" is reachable", func() error { return f.reachable(name) })
}

func (f *fleet) reachable(name string) error {
	if m, ok := f.registry.Member(name); !ok || !m.Reachable() {
		return errors.New("it is not")
	}
	return nil
}

// start runs the packages as orrery server does. The field stop ends them.
func (f *fleet) start() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cfg := testenv.Config(hubServer)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, &f.writes} })
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: f.scheme, Logger: f.logger(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	f.must(err)
	db, err := store.Open(ctx, f.dir)
	f.must(err)
	// A cluster that answers late on a busy machine stays reachable, unless the test sets
	// loses.
	probes := member.Probes{Interval: time.Second, Timeout: time.Minute, Failures: 60}
	if f.loses {
		probes.Timeout, probes.Failures = 3*time.Second, 3
	}
	f.registry, err = member.Add(mgr, member.Options{
		HubID: f.hubID, Tunnel: f.tunnel,
		Observe: func(cluster string) member.Observation {
			if observe := f.observe.Load(); observe != nil {
				(*observe)(cluster)
			}
			return f.mirror.Observation(cluster)
		},
		Departures: []member.Departure{
			{Inside: func(ctx context.Context, m *member.Member) error { return f.applier.Leave(ctx, m) }},
			{Outside: func(_ context.Context, o *clusterv1alpha1.Cluster) error { return f.mirror.Drop(o.Name) }},
		},
		ProbeInterval: probes.Interval, ProbeTimeout: probes.Timeout, FailureThreshold: probes.Failures,
	})
	f.must(err)
	f.mirror = mirror.New(db, f.registry, nil, logr.Discard())
	f.must(mgr.Add(manager.RunnableFunc(f.mirror.Start)))
	f.outdated = &outdated{Mirror: f.mirror, hidden: map[string]bool{}}
	bindings, err := binding.NewCache(ctx, mgr.GetCache())
	f.must(err)
	f.applier, err = add(mgr, dependencies{
		bindings: bindings, registry: f.registry, mirror: f.outdated, templates: f.templates,
		decisions: f.decisions, records: f.records, hubID: f.hubID, listPatience: 3 * time.Second, answerPatience: f.answerPatience,
		spread: f.spread, fences: f.fences, now: f.now,
	})
	f.must(err)
	if f.clock != nil {
		f.applier.restoreCheck.now = f.clock
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, db.Close()); err != nil {
			f.whole.Error(err)
		}
	})
	f.whole.Cleanup(f.stop)
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

// calls returns the number of requests to members with a verb; if verb is "", of all that
// write.
func (f *fleet) calls(verb string) float64 {
	f.t.Helper()
	if verb != "" {
		return testutil.ToFloat64(calls.WithLabelValues(verb))
	}
	var sum float64
	for _, verb := range []string{"apply", "create", "mark", "delete"} {
		sum += f.calls(verb)
	}
	return sum
}

// configMap returns a template that exists only in the template cache of the test.
func configMap(namespace, name, value string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"key": value}}}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetUID(types.UID("template-" + name))
	return o
}

// bind stores a template and creates a binding that places it in the clusters. change, unless
// it is nil, edits the spec first.
func (f *fleet) bind(o *unstructured.Unstructured, change func(*workv1alpha2.BindingSpec), clusters ...string) *workv1alpha2.ResourceBinding {
	f.t.Helper()
	f.templates.set(o)
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName() + "-binding", Finalizers: []string{workv1alpha2.Finalizer}},
		Spec: workv1alpha2.BindingSpec{
			Resource:  workv1alpha2.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID()},
			PolicyRef: workv1alpha2.PolicyReference{Kind: "PropagationPolicy", Name: "p"},
			Clusters:  targets(clusters),
		},
	}
	if change != nil {
		change(&b.Spec)
	}
	f.must(f.hub.Create(f.t.Context(), b))
	return b
}

// policy creates the policy that bind names.
func (f *fleet) policy(ns string) {
	f.t.Helper()
	f.must(f.hub.Create(f.t.Context(), &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
		Spec:       policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap"}}},
	}))
}

// override returns an override policy that sets the value of ConfigMaps with the name of. It is
// cluster-wide if ns is empty.
func override(ns, name, value, of string) *policyv1alpha1.OverridePolicy {
	return &policyv1alpha1.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: policyv1alpha1.OverrideSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "ConfigMap", Name: of}},
			OverrideRules:     []policyv1alpha1.RuleWithCluster{{Overriders: *setKey(value)}},
		},
	}
}

func setKey(value string) *policyv1alpha1.Overriders {
	return &policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{
		Path: "/data/key", Operator: policyv1alpha1.OverriderOpReplace, Value: &apiextensionsv1.JSON{Raw: []byte(strconv.Quote(value))},
	}}}
}

// edit changes the spec of a binding.
func (f *fleet) edit(b *workv1alpha2.ResourceBinding, change func(*workv1alpha2.BindingSpec)) {
	f.t.Helper()
	f.eventually("edit", func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		change(&b.Spec)
		return f.hub.Update(f.t.Context(), b)
	})
}

func targets(clusters []string) []workv1alpha2.TargetCluster {
	out := make([]workv1alpha2.TargetCluster, 0, len(clusters))
	for _, c := range clusters {
		out = append(out, workv1alpha2.TargetCluster{Name: c})
	}
	return out
}

// move changes the clusters of a binding, and adds an eviction task for each cluster that it
// drops.
func (f *fleet) move(b *workv1alpha2.ResourceBinding, clusters ...string) {
	f.t.Helper()
	f.eventually("move", func() error {
		if err := f.hub.Get(f.t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		b.Spec.GracefulEvictionTasks = nil
		for _, c := range b.Spec.Clusters {
			if !slices.Contains(clusters, c.Name) {
				b.Spec.GracefulEvictionTasks = append(b.Spec.GracefulEvictionTasks,
					workv1alpha2.GracefulEvictionTask{FromCluster: c.Name, Replicas: c.Replicas})
			}
		}
		b.Spec.Clusters = targets(clusters)
		return f.hub.Update(f.t.Context(), b)
	})
}

// result waits until the result for the generation of b has the reason, and returns it.
func (f *fleet) result(b *workv1alpha2.ResourceBinding, cluster, reason string) Result {
	f.t.Helper()
	var r Result
	f.eventually(fmt.Sprintf("%s in %s", reason, cluster), func() error {
		var ok bool
		if r, ok = f.applier.Result(b.UID, cluster); !ok || r.Reason != reason || r.Generation != b.Generation {
			return fmt.Errorf("it is %+v (known: %t)", r, ok)
		}
		return nil
	})
	return r
}

// gone waits until an object is gone.
func (f *fleet) gone(c client.Client, o client.Object) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%T %s is gone", o, o.GetName()), func() error {
		err := c.Get(f.t.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

// data waits until a ConfigMap holds a value, and returns it.
func (f *fleet) data(c client.Client, namespace, name, value string) *corev1.ConfigMap {
	f.t.Helper()
	o := &corev1.ConfigMap{}
	f.eventually(fmt.Sprintf("config map %s holds %q", name, value), func() error {
		if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
			return err
		}
		if o.Data["key"] != value {
			return fmt.Errorf("it holds %v", o.Data)
		}
		return nil
	})
	return o
}

// rewrite patches a copy, because the applier may write the copy in between.
func (f *fleet) rewrite(c client.Client, o *corev1.ConfigMap, change func(*corev1.ConfigMap)) {
	f.t.Helper()
	before := o.DeepCopy()
	change(o)
	f.must(c.Patch(f.t.Context(), o, client.MergeFrom(before)))
}

// placed returns an error unless the mirror has n objects of a binding in a cluster.
func (f *fleet) placed(b *workv1alpha2.ResourceBinding, cluster string, n int) error {
	found := 0
	for _, o := range f.mirror.Placed(b.UID) {
		if o.Cluster == cluster {
			found++
		}
	}
	if found != n {
		return fmt.Errorf("there are %d objects, want %d", found, n)
	}
	return nil
}

// presence returns an error unless the mirror has this presence of a ConfigMap.
func (f *fleet) presence(cluster, namespace, name string, want presence.Presence) error {
	got, _ := f.mirror.Lookup(cluster, schema.GroupResource{Resource: "configmaps"}, namespace, name)
	if got != want {
		return fmt.Errorf("presence is %v, want %v", got, want)
	}
	return nil
}

// finalizeNamespace ends the deletion of a namespace, as its namespace controller does.
func (f *fleet) finalizeNamespace(cfg *rest.Config, name string) {
	f.t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	f.must(err)
	n, err := c.CoreV1().Namespaces().Get(f.t.Context(), name, metav1.GetOptions{})
	f.must(err)
	n.Spec.Finalizers = nil
	_, err = c.CoreV1().Namespaces().Finalize(f.t.Context(), n, metav1.UpdateOptions{})
	f.must(err)
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// logger writes the log to standard error if the tests are verbose, and nowhere otherwise.
func (f *fleet) logger() logr.Logger {
	if !testing.Verbose() {
		return logr.Discard()
	}
	return funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{Verbosity: 1})
}
