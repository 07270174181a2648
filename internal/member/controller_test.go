package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/testenv"
)

const (
	reachable    = clusterv1alpha1.ConditionReachable
	joined       = clusterv1alpha1.ConditionJoined
	apisComplete = clusterv1alpha1.ConditionAPIsComplete
	readyNow     = clusterv1alpha1.ConditionReady
)

// inside returns Departures with one phase that runs in the cluster.
func inside(run func(context.Context, *Member) error) []Departure {
	return []Departure{{Name: "it is empty", Reason: clusterv1alpha1.ReasonLeavingWorkloads, Inside: run}}
}

func TestJoinWorkLeave(t *testing.T) {
	var left, leaving atomic.Int32
	f := startFleet(t, Options{
		Observe: func(string) Observation {
			return Observation{
				Synced: true, Nodes: &clusterv1alpha1.NodeSummary{Total: 3, Ready: 2},
				Resources: &clusterv1alpha1.ResourceSummary{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("12")}},
			}
		},
		Departures: append(inside(func(_ context.Context, m *Member) error {
			if !m.Leaving() || !m.Reachable() {
				t.Errorf("leave is called with leaving %t and reachable %t", m.Leaving(), m.Reachable())
			}
			if leaving.Add(1) == 1 {
				return errors.New("one object is still there")
			}
			return nil
		}), Departure{Outside: func(context.Context, *clusterv1alpha1.Cluster) error { left.Add(1); return nil }}),
	})
	c := f.joinReady(t, "one", testenv.Kubeconfig(1))

	m := f.member(t, "one")
	if !m.Reachable() {
		t.Error("a ready cluster is not reachable")
	}
	list, err := m.Dynamic().Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if id := namespaceUID(list, metav1.NamespaceSystem); id == "" || id != c.Status.ID {
		t.Errorf("status.id %q is not the UID %q of kube-system", c.Status.ID, id)
	}
	want := clusterv1alpha1.ClusterStatus{
		KubernetesVersion: "v1.36.3", ID: c.Status.ID, NodeSummary: &clusterv1alpha1.NodeSummary{Total: 3, Ready: 2},
		APIs: &clusterv1alpha1.APISummary{
			Count: int32(len(m.APIs().All())), Hash: m.APIs().Hash(), Completeness: clusterv1alpha1.APIsComplete,
		},
		ResourceSummary: &clusterv1alpha1.ResourceSummary{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("12")}},
	}
	if diff := cmp.Diff(want, c.Status, cmpopts.IgnoreFields(clusterv1alpha1.ClusterStatus{}, "Conditions")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	for kind, want := range map[string]presence.Presence{"Deployment": presence.Present, "Nonsense": presence.Absent} {
		if _, got := m.APIs().Kind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind}); got != want {
			t.Errorf("kind %s is %s, want %s", kind, got, want)
		}
	}

	secret := &corev1.Secret{}
	if err := f.hub.Get(t.Context(), client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "one"}, secret); err != nil {
		t.Fatal(err)
	}
	if len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != c.UID {
		t.Errorf("owners of the Secret are %v, want the Cluster", secret.OwnerReferences)
	}
	if again := f.join(t, "one", testenv.Kubeconfig(1)); !again.Refreshed || again.ID != c.Status.ID {
		t.Errorf("joined again: %+v, want it refreshed", again)
	}

	if err := Unjoin(t.Context(), f.hub, "one", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "one")
	if leaving.Load() < 2 || left.Load() == 0 {
		t.Errorf("leave was called %d times and left %d times, want a retry and then left", leaving.Load(), left.Load())
	}
	// The Cluster disappears before the registry notices.
	eventually(t, "the registry has heard of it", func() (bool, string) {
		_, ok := f.registry.Member("one")
		return !ok && f.seen(Event{Joined, "one"}) && f.seen(Event{Changed, "one"}) && f.seen(Event{Left, "one"}), "an event or the end is missing"
	})
	if err := Unjoin(t.Context(), f.hub, "one", false); !apierrors.IsNotFound(err) {
		t.Errorf("unjoin of a stranger: %v, want not found", err)
	}
}

func namespaceUID(list *unstructured.UnstructuredList, name string) string {
	for _, ns := range list.Items {
		if ns.GetName() == name {
			return string(ns.GetUID())
		}
	}
	return ""
}

func TestIdleWritesNothing(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	before := f.cluster(t, "one")
	f.afterProbes(t, "one", 20)
	if after := f.cluster(t, "one"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("an idle cluster was written:\n%s", cmp.Diff(before, after))
	}

	// A restart writes nothing either, although the mirror has to list everything again.
	f.stop()
	var synced atomic.Bool
	g := runFleet(t, Options{Observe: func(string) Observation { return Observation{Synced: synced.Load(), Message: "listing"} }})
	defer g.stop()
	eventually(t, "the cluster is reachable again", func() (bool, string) {
		m, ok := g.registry.Member("one")
		return ok && m.Reachable(), ""
	})
	g.afterProbes(t, "one", 10)
	synced.Store(true)
	g.registry.Refresh("one")
	g.afterProbes(t, "one", 15) // longer than the delay of Refresh
	if after := g.cluster(t, "one"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("a restart wrote:\n%s", cmp.Diff(before, after))
	}
	// Once the mirror was synced after the restart, a report that it is not synced is written.
	synced.Store(false)
	g.registry.Refresh("one")
	g.until(t, "one", clusterv1alpha1.ConditionMirrored, metav1.ConditionFalse, clusterv1alpha1.ReasonMirroring)
	synced.Store(true)
	g.registry.Refresh("one")
	g.until(t, "one", clusterv1alpha1.ConditionMirrored, metav1.ConditionTrue, clusterv1alpha1.ReasonMirrored)
	g.stop()

	// After a restart that lost the stored rows, the cluster is reported as not mirrored at
	// once.
	h := runFleet(t, Options{Observe: func(string) Observation { return Observation{NotStored: true, Message: "lost"} }})
	defer h.stop()
	h.until(t, "one", clusterv1alpha1.ConditionMirrored, metav1.ConditionFalse, clusterv1alpha1.ReasonNotStored)
}

func TestOutage(t *testing.T) {
	f := startFleet(t, losing(Options{}))
	s := testenv.StartServer(t)
	before := f.joinReady(t, "one", s.Kubeconfig())
	m := f.member(t, "one")

	for name, outage := range map[string]struct{ down, up func() }{
		"Killed": {
			down: func() { s.Signal(t, syscall.SIGKILL) },
			up:   func() { s.Restart(t) },
		},
		"Hung": {
			down: func() { s.Signal(t, syscall.SIGSTOP) },
			up:   func() { s.Signal(t, syscall.SIGCONT) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			watching, err := m.Dynamic().Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer watching.Stop()
			outage.down()
			c := f.until(t, "one", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)
			if m.Reachable() {
				t.Error("a dead cluster is reachable")
			}
			if got := meta.FindStatusCondition(c.Status.Conditions, joined); got == nil || got.Status != metav1.ConditionTrue {
				t.Errorf("Joined is %v, want what it was", got)
			}
			eventually(t, "the watch ends, which would hang on the old connection", func() (bool, string) {
				select {
				case _, open := <-watching.ResultChan():
					return !open, ""
				default:
					return false, ""
				}
			})
			outage.up()
			c = f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
			if c.Status.ID != before.Status.ID {
				t.Errorf("back: id %s, want the cluster that was there", c.Status.ID)
			}
			eventually(t, "the cluster is reachable", func() (bool, string) { return m.Reachable(), "" })
		})
	}
}

func TestLeaveUnreachable(t *testing.T) {
	f := startFleet(t, losing(Options{Departures: inside(func(context.Context, *Member) error { return errors.New("unreachable") })}))
	s := testenv.StartServer(t)
	f.joinReady(t, "lost", s.Kubeconfig())
	s.Signal(t, syscall.SIGKILL)
	f.until(t, "lost", readyNow, metav1.ConditionUnknown, clusterv1alpha1.ReasonUnreachable)

	if err := Unjoin(t.Context(), f.hub, "lost", true); err != nil {
		t.Fatal(err)
	}
	f.until(t, "lost", readyNow, metav1.ConditionFalse, clusterv1alpha1.ReasonLeavingWorkloads)
	f.afterProbes(t, "lost", 3)
	if c := f.cluster(t, "lost"); !slices.Contains(c.Finalizers, clusterv1alpha1.Finalizer) {
		t.Error("the cluster left though its workloads could not be deleted")
	}
	// The command that the condition names works.
	if err := Unjoin(t.Context(), f.hub, "lost", false); err != nil {
		t.Fatal(err)
	}
	last, err := WaitGone(t.Context(), f.hub, "lost")
	if err != nil {
		t.Fatal(err)
	}
	if said := meta.FindStatusCondition(last.Status.Conditions, clusterv1alpha1.ConditionWorkloadsLeft); said == nil || said.Reason != clusterv1alpha1.ReasonMarksLeft {
		t.Errorf("WorkloadsLeft was %v, want it to say that our marks stay", said)
	}
}

func TestRotatedCredentials(t *testing.T) {
	f := startFleet(t, Options{})
	admin := kubernetes.NewForConfigOrDie(testenv.Config(1))
	token, revoke := serviceAccount(t, admin, "cluster-admin")
	f.joinReady(t, "rotated", withToken(t, testenv.Kubeconfig(1), token))
	m := f.member(t, "rotated")
	dyn := m.Dynamic()

	revoke()
	f.until(t, "rotated", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonUnauthorized)
	if m.Reachable() {
		t.Error("a cluster that refuses us is reachable")
	}
	for end := time.Now().Add(time.Minute); !m.Lost(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a cluster that refuses us is not lost")
		}
	}
	if got := meta.FindStatusCondition(f.cluster(t, "rotated").Status.Conditions, reachable); got.Status != metav1.ConditionTrue {
		t.Errorf("Reachable is %v, want True: it answers", got)
	}
	f.join(t, "rotated", testenv.Kubeconfig(1))
	f.until(t, "rotated", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if _, err := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a client from before the rotation: %v", err)
	}
}

func TestBadSecret(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "one"}
	if err := f.hub.Get(t.Context(), key, secret); err != nil {
		t.Fatal(err)
	}
	good := secret.DeepCopy()
	cases := []struct {
		name  string
		spoil func(map[string][]byte)
		names string // text in the message
	}{
		{"NoKey", func(d map[string][]byte) { d["tls.crt"] = d["ca.crt"]; delete(d, "tls.key") }, `"tls.key"`},
		{"NothingAtAll", func(d map[string][]byte) { clear(d) }, `"token"`},
		{"BadCA", func(d map[string][]byte) { d["ca.crt"] = []byte("hunter2") }, `"ca.crt"`},
		{"BadCert", func(d map[string][]byte) { d["tls.crt"], d["tls.key"] = []byte("hunter2"), []byte("hunter2") }, `"tls.crt"`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			bad := good.DeepCopy()
			bad.ResourceVersion = ""
			tc.spoil(bad.Data)
			if err := f.hub.Update(t.Context(), bad); err != nil {
				t.Fatal(err)
			}
			c := f.until(t, "one", reachable, metav1.ConditionUnknown, clusterv1alpha1.ReasonSecretInvalid)
			message := meta.FindStatusCondition(c.Status.Conditions, reachable).Message
			if !strings.Contains(message, tc.names) || strings.Contains(message, "hunter2") {
				t.Errorf("message %q, want it to name key %s and no value", message, tc.names)
			}
			if f.member(t, "one").Reachable() {
				t.Error("reachable without credentials")
			}
			restored := good.DeepCopy()
			restored.ResourceVersion = ""
			if err := f.hub.Update(t.Context(), restored); err != nil {
				t.Fatal(err)
			}
			f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		})
	}
}

func TestIdentity(t *testing.T) {
	var leaves atomic.Int32
	f := startFleet(t, Options{Departures: inside(func(context.Context, *Member) error { leaves.Add(1); return nil })})
	f.joinReady(t, "one", testenv.Kubeconfig(1))

	// The same cluster and the hub itself, without the checks of Join.
	for name, server := range map[string]int{"alias": 1, "itself": 0} {
		cluster, secret, err := fromKubeconfig(JoinOptions{Name: name, Kubeconfig: testenv.Kubeconfig(server)})
		if err == nil {
			err = store(t.Context(), f.hub, nil, cluster, secret)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f.until(t, "alias", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonAlreadyJoined)
	f.until(t, "itself", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonIsHub)
	f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)

	// Another cluster under the same name.
	other, secret, err := fromKubeconfig(JoinOptions{Name: "one", Kubeconfig: testenv.Kubeconfig(2)})
	if err == nil {
		err = store(t.Context(), f.hub, f.cluster(t, "one"), other, secret)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.until(t, "one", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonIdentityChanged)
	if f.member(t, "one").Reachable() {
		t.Error("another cluster is reachable under the name of one")
	}
	if err := Unjoin(t.Context(), f.hub, "one", false); err != nil {
		t.Fatal(err)
	}
	f.waitGone(t, "one")
	if leaves.Load() > 0 {
		t.Error("something was cleaned up in another cluster")
	}
	// The Cluster that was refused as a duplicate becomes ready.
	f.until(t, "alias", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
}

func TestForbidden(t *testing.T) {
	f := startFleet(t, Options{})
	admin := kubernetes.NewForConfigOrDie(testenv.Config(1))
	token, _ := serviceAccount(t, admin, "view")
	cluster, secret, err := fromKubeconfig(JoinOptions{Name: "one", Kubeconfig: withToken(t, testenv.Kubeconfig(1), token)})
	if err == nil {
		err = store(t.Context(), f.hub, nil, cluster, secret)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.until(t, "one", joined, metav1.ConditionFalse, clusterv1alpha1.ReasonForbidden)
	if f.member(t, "one").Reachable() {
		t.Error("reachable without permissions")
	}
}

func TestRediscover(t *testing.T) {
	f := startFleet(t, Options{DiscoveryInterval: time.Hour})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	m := f.member(t, "one")
	gvk := schema.GroupVersionKind{Group: "fruit.example.com", Version: "v1", Kind: "Apple"}
	gvr := gvk.GroupVersion().WithResource("apples")
	if _, got := m.APIs().Kind(gvk); got != presence.Absent {
		t.Fatalf("the type is %s before it exists", got)
	}

	remove := create(t, 1, apple())
	eventually(t, "the new type is listed", func() (bool, string) {
		f.registry.Rediscover("one")
		api, got := m.APIs().Resource(gvr)
		return got == presence.Present && api.Namespaced && api.Preferred && slices.Contains(api.Subresources, "status"), got.String()
	})
	hash := m.APIs().Hash()
	eventually(t, "the status has the new list", func() (bool, string) {
		got := f.cluster(t, "one").Status.APIs
		return got.Hash == hash, got.Hash
	})
	remove()
	eventually(t, "the type is gone", func() (bool, string) {
		f.registry.Rediscover("one")
		_, got := m.APIs().Resource(gvr)
		return got == presence.Absent, got.String()
	})
}

// TestRediscoverOnce: one call of Rediscover is enough to find a new type that the cluster
// already lists, even with a long DiscoveryInterval.
func TestRediscoverOnce(t *testing.T) {
	f := startFleet(t, Options{DiscoveryInterval: time.Hour})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	m := f.member(t, "one")
	gvk := schema.GroupVersionKind{Group: "fruit.example.com", Version: "v1", Kind: "Apple"}
	defer create(t, 1, apple())()
	d := &discoverer{connection: connectionTo(t, 1)}
	eventually(t, "the cluster lists the new type", func() (bool, string) {
		apis, err := d.look(t.Context(), &APIs{})
		if err != nil {
			return false, err.Error()
		}
		_, got := apis.Kind(gvk)
		return got == presence.Present, got.String()
	})
	f.registry.Rediscover("one")
	eventually(t, "the new type is listed", func() (bool, string) {
		_, got := m.APIs().Kind(gvk)
		return got == presence.Present, got.String()
	})
}

func TestAggregatedAPIDown(t *testing.T) {
	f := startFleet(t, Options{})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	m := f.member(t, "one")
	remove := create(t, 1, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.down.example.com"},
		"spec": map[string]any{
			"group": "down.example.com", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(10),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "default", "name": "nobody"},
		},
	}})
	c := f.until(t, "one", apisComplete, metav1.ConditionFalse, clusterv1alpha1.ReasonPartial)
	if got := meta.FindStatusCondition(c.Status.Conditions, clusterv1alpha1.ConditionMirrored); got == nil || got.Status != metav1.ConditionTrue {
		t.Errorf("Mirrored is %v, want True: what is listed can be mirrored", got)
	}
	if c.Status.APIs.Completeness != clusterv1alpha1.APIsPartial {
		t.Errorf("status.apis is %v, want it partial", c.Status.APIs)
	}
	down := schema.GroupVersionKind{Group: "down.example.com", Version: "v1", Kind: "Anything"}
	for gvk, want := range map[schema.GroupVersionKind]presence.Presence{down: presence.Unknown, corev1.SchemeGroupVersion.WithKind("Pod"): presence.Present} {
		if _, got := m.APIs().Kind(gvk); got != want {
			t.Errorf("%s is %s, want %s", gvk, got, want)
		}
	}
	remove()
	f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
	if _, got := m.APIs().Kind(down); got != presence.Absent {
		t.Errorf("%s is %s after its APIService is gone, want Disabled", down, got)
	}
}

// TestAPIListIsWholeAgain: reading the API list fails until the list counts as incomplete. It
// is complete again when the cluster answers, although nothing has changed there.
func TestAPIListIsWholeAgain(t *testing.T) {
	r, err := testenv.NewRecorder(testenv.Config(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	// The probe interval is long, because a probe could trigger a new read of everything.
	f := startFleet(t, Options{ProbeInterval: time.Minute, DiscoveryInterval: 50 * time.Millisecond})
	f.joinReady(t, "one", r.Kubeconfig())
	r.Fail(testenv.Cut)
	f.until(t, "one", apisComplete, metav1.ConditionFalse, clusterv1alpha1.ReasonPartial)
	r.Heal()
	f.until(t, "one", apisComplete, metav1.ConditionTrue, clusterv1alpha1.ReasonComplete)
}

func TestResourceSummaryIsCoalesced(t *testing.T) {
	var cpus atomic.Int64
	cpus.Store(1)
	began := time.Now()
	f := startFleet(t, Options{Observe: func(string) Observation {
		n := cpus.Load()
		return Observation{
			Synced: true, Nodes: &clusterv1alpha1.NodeSummary{Total: int32(n)},
			Resources: &clusterv1alpha1.ResourceSummary{Allocatable: corev1.ResourceList{"cpu": *resource.NewQuantity(n, resource.DecimalSI)}},
		}
	}})
	f.joinReady(t, "one", testenv.Kubeconfig(1))
	m := f.member(t, "one")
	m.mu.Lock()
	if m.summarised.Before(began) {
		t.Errorf("the write of the resources is recorded at %s, want after %s", m.summarised, began)
	}
	m.summarised = time.Now() // the write may have been long ago
	m.mu.Unlock()
	cpus.Store(2)
	f.registry.Refresh("one")
	eventually(t, "the nodes are written", func() (bool, string) { return f.cluster(t, "one").Status.NodeSummary.Total == 2, "" })
	if got := f.cluster(t, "one").Status.ResourceSummary.Allocatable.Cpu().Value(); got != 1 {
		t.Errorf("cpu is %d right after a write, want the 1 that was written first", got)
	}
	m.mu.Lock()
	m.summarised = time.Now().Add(-summaryInterval)
	m.mu.Unlock()
	f.registry.Refresh("one")
	eventually(t, "the resources are written when it is time", func() (bool, string) {
		return f.cluster(t, "one").Status.ResourceSummary.Allocatable.Cpu().Value() == 2, ""
	})
}

func TestValidation(t *testing.T) {
	hub := newHub(t)
	cases := map[string]struct {
		change func(*clusterv1alpha1.Cluster)
		field  string
	}{
		"Endpoint":   {func(c *clusterv1alpha1.Cluster) { c.Spec.APIEndpoint = "10.0.0.1:6443" }, "spec.apiEndpoint"},
		"PlainHTTP":  {func(c *clusterv1alpha1.Cluster) { c.Spec.APIEndpoint = "http://10.0.0.1:8080" }, "spec.apiEndpoint"},
		"NameLength": {func(c *clusterv1alpha1.Cluster) { c.Name = strings.Repeat("a", 49) }, "metadata.name"},
		"NameDots":   {func(c *clusterv1alpha1.Cluster) { c.Name = "a.b" }, "metadata.name"},
		"NoSecret":   {func(c *clusterv1alpha1.Cluster) { c.Spec.SecretRef.Name = "" }, "spec.secretRef.name"},
		"Policy":     {func(c *clusterv1alpha1.Cluster) { c.Spec.DeletionPolicy = "Perhaps" }, "spec.deletionPolicy"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := &clusterv1alpha1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Name: "valid"},
				Spec: clusterv1alpha1.ClusterSpec{
					APIEndpoint: "https://10.0.0.1:6443", SecretRef: clusterv1alpha1.SecretReference{Namespace: "a", Name: "b"},
				},
			}
			tc.change(c)
			err := hub.Create(t.Context(), c, client.DryRunAll)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.field) {
				t.Errorf("create: %v, want it refused naming %s", err, tc.field)
			}
		})
	}
}

// serviceAccount creates an account with a ClusterRole and returns a token of it.
func serviceAccount(t *testing.T, c kubernetes.Interface, role string) (token string, revoke func()) {
	t.Helper()
	ctx := t.Context()
	account, err := c.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "orrery-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account.Name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request, err := c.CoreV1().ServiceAccounts("default").CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token, func() {
		if err := c.CoreV1().ServiceAccounts("default").Delete(ctx, account.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// create creates an object in a server until the test ends or remove is called.
func create(t *testing.T, server int, o *unstructured.Unstructured) (remove func()) {
	t.Helper()
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	c := dynamic.NewForConfigOrDie(testenv.Config(server)).Resource(gvr)
	if _, err := c.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	remove = func() {
		err := c.Delete(context.WithoutCancel(t.Context()), o.GetName(), metav1.DeleteOptions{})
		if client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	t.Cleanup(remove)
	return remove
}

func apple() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiextensionsv1.SchemeGroupVersion.String(), "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "apples.fruit.example.com"},
		"spec": map[string]any{
			"group": "fruit.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "apples", "singular": "apple", "kind": "Apple", "listKind": "AppleList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
}

// TestAdministratorsAreBound: the hub's administrators have their permissions in a member while
// it is joined, also if it joined before the binding existed. They lose them when the cluster
// leaves. Changes that the member's own administrators made to the binding stay.
func TestAdministratorsAreBound(t *testing.T) {
	f := startFleet(t, Options{})
	own := kubernetes.NewForConfigOrDie(testenv.Config(1))
	bindings := own.RbacV1().ClusterRoleBindings()
	boss := testenv.Config(1)
	boss.Impersonate = rest.ImpersonationConfig{UserName: "boss", Groups: []string{"orrery:admins", "system:authenticated"}}
	mayDoAll := func() (bool, error) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"},
		}}
		review, err := kubernetes.NewForConfigOrDie(boss).AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return review.Status.Allowed, nil
	}
	inForce := func() (bool, string) {
		may, err := mayDoAll()
		return err == nil && may, fmt.Sprint(err)
	}
	if err := bindings.Delete(t.Context(), "orrery:admins", metav1.DeleteOptions{}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err) // the server was a member before
	}
	eventually(t, "the group has no rights", func() (bool, string) {
		may, err := mayDoAll()
		return err == nil && !may, fmt.Sprint(err)
	})
	f.join(t, "one", testenv.Kubeconfig(1))
	f.until(t, "one", joined, metav1.ConditionTrue, clusterv1alpha1.ReasonJoined)
	eventually(t, "the rights are in force", inForce)

	t.Run("JoinedBefore", func(t *testing.T) {
		f.stop()
		if err := bindings.Delete(t.Context(), "orrery:admins", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		g := runFleet(t, Options{})
		defer g.stop()
		eventually(t, "the rights are in force", inForce)
	})
	f = runFleet(t, Options{})
	defer f.stop()
	t.Run("EmptiedByTheirs", func(t *testing.T) {
		binding, err := bindings.Get(t.Context(), "orrery:admins", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		binding.Subjects = nil
		if _, err := bindings.Update(t.Context(), binding, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.stop()
		f = runFleet(t, Options{})
		f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		f.afterProbes(t, "one", 3)
		if binding, err = bindings.Get(t.Context(), "orrery:admins", metav1.GetOptions{}); err != nil || len(binding.Subjects) > 0 {
			t.Errorf("subjects %v (%v), want them left out", binding.Subjects, err)
		}
	})
	t.Run("Left", func(t *testing.T) {
		if err := Unjoin(t.Context(), f.hub, "one", false); err != nil {
			t.Fatal(err)
		}
		f.waitGone(t, "one")
		if _, err := bindings.Get(t.Context(), "orrery:admins", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get the binding: %v, want it gone", err)
		}
	})
	f.stop()
}
