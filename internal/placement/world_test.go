package placement

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/access"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/scheduler"
	"orrery.dev/orrery/internal/template"
	"orrery.dev/orrery/internal/testenv"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testenv.Main(m, 1)
}

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
		clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha2.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}

// patience is how long a condition may take to become true on a busy machine.
const patience = 3 * time.Minute

// shortRetry replaces two delays where a test says so: until a policy's status is written, and
// until a workload that did not fit is tried again.
const shortRetry = 200 * time.Millisecond

// world is a hub with a namespace, clusters of the test, and the controller.
type world struct {
	t         *testing.T
	ctx       context.Context
	client    client.Client
	namespace string
	clusters  []string
	fleet     *fakeFleet

	controller *Controller
	// for the next controller that starts
	reportDelay, capacityRetry time.Duration
	waitPatience               time.Duration
	recorder                   *recorder
	records                    *keeper
	stop                       func()
}

// keeper counts the decisions.
type keeper struct {
	mu   sync.Mutex
	made []records.Decision
}

func (k *keeper) Decided(d records.Decision) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made = append(k.made, d)
}

// of returns the decisions on a template, in order.
func (k *keeper) of(name string) []records.Decision {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(k.made), func(d records.Decision) bool { return d.Template.Name != name })
}

// fakeFleet implements fleet.Source and copies. By default it serves every kind in every cluster.
type fakeFleet struct {
	mu          sync.Mutex
	unreachable map[string]bool
	presence    map[string]presence.Presence // by cluster; none: Present
	capacity    map[string]int64
	copied      map[string]int32 // replicas of every binding's copy in a cluster; none: Unknown
	pods        map[copyOf]int64 // of copies
	listed      bool             // the pods of other copies are known to be absent
	required    map[schema.GroupVersionKind]bool
	subscribers []func(cluster string)
	observers   []func(cluster string, binding types.UID)
}

type copyOf struct {
	binding types.UID
	cluster string
}

type kinds presence.Presence

func (k kinds) Serves(schema.GroupVersionKind) presence.Presence { return presence.Presence(k) }

type free int64

func (n free) Fits(*scheduler.Claim, bool) (int64, string) { return int64(n), "" }

func (n free) Sets(components []scheduler.Component, _ bool) (sets int64, lacking, quota string) {
	var each int64
	for _, c := range components {
		each += c.Replicas
	}
	if each > int64(n) {
		return 0, components[0].Name, ""
	}
	return int64(n) / max(1, each), "", ""
}

func (n free) Without(taken []scheduler.Taken) scheduler.FreeCapacity {
	for _, t := range taken {
		n = max(0, n-free(t.Replicas))
	}
	return n
}

func (f *fakeFleet) Contact(cluster string, _ types.UID) fleet.Contact {
	f.mu.Lock()
	defer f.mu.Unlock()
	away := f.unreachable[cluster]
	c := fleet.Contact{Contact: member.Contact{Reachable: !away, Silent: away, Probed: true}, APIs: kinds(presence.Present)}
	if p, ok := f.presence[cluster]; ok {
		c.APIs = kinds(p)
	}
	return c
}

func (f *fakeFleet) FreeCapacity(cluster string) fleet.FreeCapacity {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, ok := f.capacity[cluster]; ok {
		return free(n)
	}
	return nil
}

func (f *fakeFleet) Copies(_ types.UID, cluster string) (int32, presence.Presence) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, known := f.copied[cluster]
	switch {
	case !known:
		return 0, presence.Unknown
	case n == 0:
		return 0, presence.Absent
	}
	return n, presence.Present
}

func (f *fakeFleet) Pods(uid types.UID, cluster string) (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, known := f.pods[copyOf{uid, cluster}]
	return n, known || f.listed
}

func (f *fakeFleet) Require(gvk schema.GroupVersionKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.required[gvk] = true
}

// observed is the fakeFleet as a fleet.Source.
type observed struct{ *fakeFleet }

func (f observed) Subscribe(changed, measured func(cluster string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers = append(f.subscribers, func(cluster string) { measured(cluster); changed(cluster) })
}

func (f *fakeFleet) Subscribe(s func(cluster string, binding types.UID)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observers = append(f.observers, s)
}

// change changes the state of the test's clusters, and sends the change.
func (w *world) change(change func(f *fakeFleet)) {
	f := w.fleet
	f.mu.Lock()
	change(f)
	subscribers, observers := f.subscribers, f.observers
	f.mu.Unlock()
	for _, cluster := range w.clusters {
		for _, s := range subscribers {
			s(cluster)
		}
		for _, s := range observers {
			s(cluster, "")
		}
	}
}

var installed = sync.OnceValue(func() error { return testenv.InstallCRDs(testenv.Config(0)) })

// newWorld starts the controller with n clusters, named NAMESPACE-a, NAMESPACE-b and so on.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	testenv.Leftovers(t, testenv.Config(0))
	c, err := client.New(testenv.Config(0), client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		reportDelay: reportDelay, capacityRetry: capacityLook, waitPatience: waitPatience, t: t, ctx: t.Context(), client: c, namespace: testenv.Namespace(t, testenv.Config(0)),
		fleet: &fakeFleet{
			unreachable: map[string]bool{}, presence: map[string]presence.Presence{}, capacity: map[string]int64{}, copied: map[string]int32{},
			pods: map[copyOf]int64{},
		},
	}
	for i := range n {
		w.join(string(rune('a' + i)))
	}
	w.start()
	return w
}

func (w *world) join(letter string) {
	w.t.Helper()
	name := w.namespace + "-" + letter
	w.create(&clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": w.namespace}},
		Spec: clusterv1alpha1.ClusterSpec{
			APIEndpoint: "https://" + name + ":6443", SecretRef: clusterv1alpha1.SecretReference{Namespace: "default", Name: name},
		},
	})
	w.clusters = append(w.clusters, name)
}

// start starts a manager as the server does.
func (w *world) start() {
	w.t.Helper()
	w.fleet.required, w.fleet.subscribers, w.fleet.observers = map[schema.GroupVersionKind]bool{}, nil, nil
	w.recorder = &recorder{}
	config := testenv.Config(0)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		w.recorder.next = next
		return w.recorder
	})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: newScheme(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	templates, err := template.New(mgr)
	if err != nil {
		w.t.Fatal(err)
	}
	bindings, err := binding.NewCache(w.ctx, mgr.GetCache())
	if err != nil {
		w.t.Fatal(err)
	}
	clusters, err := fleet.NewCache(w.ctx, mgr.GetCache(), observed{w.fleet}, access.All)
	if err != nil {
		w.t.Fatal(err)
	}
	w.records = &keeper{}
	o := Options{Bindings: bindings, Templates: templates, Fleet: clusters, Records: w.records}
	if w.controller, err = add(mgr, o, w.fleet); err != nil {
		w.t.Fatal(err)
	}
	w.controller.settling, w.controller.capacityRetry, w.controller.waitPatience = patience, w.capacityRetry, w.waitPatience
	w.controller.reporter.delay = w.reportDelay
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("manager: %v", err)
		}
	})
	w.t.Cleanup(w.stop)
}

// create creates an object, which is deleted when the test ends.
func (w *world) create(o client.Object) {
	w.t.Helper()
	if o.GetNamespace() == "" && w.namespaced(o) {
		o.SetNamespace(w.namespace)
	}
	if err := w.client.Create(w.ctx, o); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := w.client.Delete(context.WithoutCancel(w.ctx), o); client.IgnoreNotFound(err) != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) namespaced(o client.Object) bool {
	namespaced, err := w.client.IsObjectNamespaced(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return namespaced
}

// update changes the stored object.
func update[O client.Object](w *world, o O, change func(O)) {
	w.t.Helper()
	w.eventually("update of "+o.GetName(), func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return w.client.Update(w.ctx, o)
	})
}

func (w *world) delete(o client.Object) {
	w.t.Helper()
	if err := w.client.Delete(w.ctx, o); err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits until check returns nil.
func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// deployment returns a Deployment of the namespace.
func deployment(name string, replicas int32, labels map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.org/c:1"}}},
			},
		},
	}
}

// here selects the test's clusters.
func (w *world) here() *policyv1alpha1.ClusterAffinity {
	return &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"test": w.namespace}}}
}

func (w *world) policy(name string, selectors ...policyv1alpha1.ResourceSelector) *policyv1alpha1.PropagationPolicy {
	return &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: selectors, Placement: policyv1alpha1.Placement{ClusterAffinity: w.here()},
		},
	}
}

func (w *world) clusterPolicy(name string, selectors ...policyv1alpha1.ResourceSelector) *policyv1alpha1.ClusterPropagationPolicy {
	p := w.policy(w.namespace+"-"+name, selectors...)
	p.Namespace = ""
	return (*policyv1alpha1.ClusterPropagationPolicy)(p)
}

func deployments() policyv1alpha1.ResourceSelector {
	return policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment"}
}

func divided(weights *policyv1alpha1.ClusterPreferences) *policyv1alpha1.ReplicaSchedulingStrategy {
	return &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.Divided, WeightPreference: weights,
	}
}

// binding returns the binding with the name; nil if there is none.
func (w *world) binding(name string) *workv1alpha2.ResourceBinding {
	w.t.Helper()
	b := &workv1alpha2.ResourceBinding{}
	err := w.client.Get(w.ctx, client.ObjectKey{Namespace: w.namespace, Name: name}, b)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// placed returns the placement of a binding: "a=2 b -c=1" for two replicas in the first cluster, no
// number in the second, and one replica that moves out of the third.
func (w *world) placed(b *workv1alpha2.ResourceBinding) string {
	if b == nil {
		return "no binding"
	}
	var all []string
	for _, c := range b.Spec.Clusters {
		s := strings.TrimPrefix(c.Name, w.namespace+"-")
		if c.Replicas != nil {
			s += fmt.Sprint("=", *c.Replicas)
		}
		all = append(all, s)
	}
	for _, e := range b.Spec.GracefulEvictionTasks {
		s := "-" + strings.TrimPrefix(e.FromCluster, w.namespace+"-")
		if e.Replicas != nil {
			s += fmt.Sprint("=", *e.Replicas)
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

// waitPlaced waits for the placement of a binding and the reason of its outcome.
func (w *world) waitPlaced(name, want, reason string) *workv1alpha2.ResourceBinding {
	w.t.Helper()
	var b *workv1alpha2.ResourceBinding
	w.eventually("binding "+name, func() error {
		if b = w.binding(name); w.placed(b) != want {
			return fmt.Errorf("placed %q, want %q", w.placed(b), want)
		}
		v, ok := w.controller.Outcome(b.UID)
		if !ok || v.Reason != reason || v.Generation != b.Generation {
			return fmt.Errorf("outcome %+v, want reason %s of generation %d", v, reason, b.Generation)
		}
		return nil
	})
	return b
}

// release removes the finalizer of a deleted binding, as apply does when the copies are gone.
func (w *world) release(b *workv1alpha2.ResourceBinding) {
	w.t.Helper()
	w.eventually("deletion of binding "+b.Name, func() error {
		now := &workv1alpha2.ResourceBinding{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(b), now); err != nil {
			return client.IgnoreNotFound(err)
		}
		if now.UID != b.UID {
			return nil
		}
		if now.DeletionTimestamp.IsZero() {
			return fmt.Errorf("it is not deleted")
		}
		now.Finalizers = nil
		return client.IgnoreNotFound(w.client.Update(w.ctx, now))
	})
}

// waitStatus waits for the status of a policy.
func (w *world) waitStatus(p client.Object, claimed int32, reasons map[string]string, parts ...string) policyv1alpha1.PropagationStatus {
	w.t.Helper()
	var status policyv1alpha1.PropagationStatus
	w.eventually("status of "+p.GetName(), func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		status = asPolicy(p).Status
		if status.Claimed != claimed {
			return fmt.Errorf("claimed %d, want %d: %+v", status.Claimed, claimed, status)
		}
		var messages strings.Builder
		for kind, reason := range reasons {
			c := meta.FindStatusCondition(status.Conditions, kind)
			if c == nil || c.Reason != reason || c.ObservedGeneration != p.GetGeneration() {
				return fmt.Errorf("%s is %+v, want %s", kind, c, reason)
			}
			messages.WriteString(c.Message + "\n")
		}
		for _, part := range parts {
			if !strings.Contains(messages.String(), part) {
				return fmt.Errorf("messages %q lack %q", messages.String(), part)
			}
		}
		return nil
	})
	return status
}

// recorder records the writing requests of the controller, except those that were too late and
// changed nothing. With a stale cache the controller creates a binding once more, which the API
// server refuses.
type recorder struct {
	mu     sync.Mutex
	writes []string
	next   http.RoundTripper
	// answered, unless nil, is called with each write that the hub has done, before the
	// controller gets the answer.
	answered func(*http.Request)
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return r.next.RoundTrip(req)
	}
	write := req.Method + " " + req.URL.Path
	r.mu.Lock()
	r.writes = append(r.writes, write) // before anybody can see what it did
	r.mu.Unlock()
	resp, err := r.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusConflict {
		r.mu.Lock()
		i := slices.Index(r.writes, write)
		r.writes = slices.Delete(r.writes, i, i+1)
		r.mu.Unlock()
	}
	r.mu.Lock()
	answered := r.answered
	r.mu.Unlock()
	if answered != nil && err == nil && resp.StatusCode < http.StatusMultipleChoices {
		answered(req)
	}
	return resp, err
}

// of returns the recorded writes whose path contains part.
func (r *recorder) of(part string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.writes), func(w string) bool { return !strings.Contains(w, part) })
}
