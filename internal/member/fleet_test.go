package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// Server 0 is the hub, 1 and 2 are members.
func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Println(prefix, args) }, funcr.Options{LogTimestamp: true}))
	testenv.Main(m, 3)
}

// patience is the time that a test waits for an expected result. Tests do not check how long
// results take.
const patience = 3 * time.Minute

// fleet is a hub with the controller of Clusters.
type fleet struct {
	hub      client.WithWatch
	registry *Registry
	stop     func()

	mu     sync.Mutex
	probes map[string]int
	events []Event
}

func newHub(t *testing.T) client.WithWatch {
	t.Helper()
	cfg := testenv.Config(0)
	if err := testenv.InstallCRDs(cfg, "clusters.cluster.orrery.dev"); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	hub, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return hub
}

func hubID(t *testing.T, hub client.Client) string {
	t.Helper()
	ns := &corev1.Namespace{}
	if err := hub.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		t.Fatal(err)
	}
	return string(ns.UID)
}

// startFleet runs the controller with short intervals until the test ends, and then empties the
// fleet.
func startFleet(t *testing.T, o Options) *fleet {
	t.Helper()
	f := runFleet(t, o)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		clusters := &clusterv1alpha1.ClusterList{}
		if err := f.hub.List(ctx, clusters); err != nil {
			t.Error(err)
		}
		for _, c := range clusters.Items {
			if err := f.hub.Delete(ctx, &c); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			if err := f.hub.Patch(ctx, &c, patch); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
		// No garbage collector runs here.
		if err := f.hub.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(clusterv1alpha1.SecretNamespace)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// losing returns options with which a cluster that does not answer is lost soon.
func losing(o Options) Options {
	o.ProbeTimeout, o.FailureThreshold = 2*time.Second, 3
	return o
}

func runFleet(t *testing.T, o Options) *fleet {
	t.Helper()
	f := &fleet{hub: newHub(t), probes: map[string]int{}}
	mgr, err := ctrl.NewManager(testenv.Config(0), ctrl.Options{
		Scheme: f.hub.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.ProbeInterval == 0 {
		o.ProbeInterval = 100 * time.Millisecond
	}
	// A cluster that answers late on a busy machine stays reachable. Tests that stop a cluster
	// use losing.
	if o.ProbeTimeout == 0 {
		o.ProbeTimeout = time.Minute
	}
	if o.FailureThreshold == 0 {
		o.FailureThreshold = 300 // half a minute at least
	}
	if o.DiscoveryInterval == 0 {
		o.DiscoveryInterval = 500 * time.Millisecond
	}
	o.HubID = hubID(t, f.hub)
	o.probed = func(cluster string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.probes[cluster]++
	}
	if f.registry, err = Add(mgr, o); err != nil {
		t.Fatal(err)
	}
	f.registry.Subscribe(func(e Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, e)
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return f
}

// eventually waits until a condition holds, and fails the test after patience. what describes
// the condition.
func eventually(t *testing.T, what string, condition func() (bool, string)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (ok bool, _ error) {
		ok, last = condition()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("waited in vain until %s; last seen: %s", what, last)
	}
}

func (f *fleet) cluster(t *testing.T, name string) *clusterv1alpha1.Cluster {
	t.Helper()
	c := &clusterv1alpha1.Cluster{}
	f.get(t, client.ObjectKey{Name: name}, c)
	return c
}

// get reads an object, and fails the test if the object does not exist.
func (f *fleet) get(t *testing.T, key client.ObjectKey, o client.Object) {
	t.Helper()
	eventually(t, "the hub answers", func() (bool, string) {
		err := f.hub.Get(t.Context(), key, o)
		if apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

// until waits until a condition of a Cluster has a status and a reason, and returns the
// Cluster.
func (f *fleet) until(t *testing.T, name, condition string, status metav1.ConditionStatus, reason string) *clusterv1alpha1.Cluster {
	t.Helper()
	var c *clusterv1alpha1.Cluster
	eventually(t, fmt.Sprintf("%s of %s is %s/%s", condition, name, status, reason), func() (bool, string) {
		c = f.cluster(t, name)
		got := meta.FindStatusCondition(c.Status.Conditions, condition)
		return got != nil && got.Status == status && got.Reason == reason, fmt.Sprintf("%v", c.Status.Conditions)
	})
	return c
}

func (f *fleet) member(t *testing.T, name string) *Member {
	t.Helper()
	m, ok := f.registry.Member(name)
	if !ok {
		t.Fatalf("%s is not in the registry", name)
	}
	return m
}

// afterProbes waits for n more probes of a cluster.
func (f *fleet) afterProbes(t *testing.T, name string, n int) {
	t.Helper()
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.probes[name]
	}
	target := count() + n
	eventually(t, fmt.Sprintf("%s was probed %d times more", name, n), func() (bool, string) {
		return count() >= target, fmt.Sprintf("%d of %d", count(), target)
	})
}

func (f *fleet) join(t *testing.T, name string, kubeconfig []byte) *JoinResult {
	t.Helper()
	return f.joinWith(t, JoinOptions{Name: name, Kubeconfig: kubeconfig})
}

// joinWith joins a cluster. It tries again while the cluster or the hub does not answer in
// time.
func (f *fleet) joinWith(t *testing.T, o JoinOptions) (result *JoinResult) {
	t.Helper()
	eventually(t, o.Name+" is joined", func() (bool, string) {
		var err error
		if result, err = Join(t.Context(), f.hub, o); err == nil {
			return true, ""
		}
		refused, ok := errors.AsType[*JoinError](err)
		if !ok || refused.Reason != clusterv1alpha1.ReasonUnreachable && refused.Reason != ReasonNotConfirmed {
			t.Fatal(err)
		}
		return false, err.Error()
	})
	return result
}

func (f *fleet) joinReady(t *testing.T, name string, kubeconfig []byte) *clusterv1alpha1.Cluster {
	t.Helper()
	f.join(t, name, kubeconfig)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := WaitReady(ctx, f.hub, name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *fleet) waitGone(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := WaitGone(ctx, f.hub, name); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) seen(e Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.events, e)
}
