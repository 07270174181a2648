package member

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// front is another address of server 1. While it is closed, it aborts every request. While
// unready is above zero, it answers /readyz with 500 and decrements unready.
type front struct {
	*httptest.Server

	closed  atomic.Bool
	unready atomic.Int32
	header  atomic.Pointer[string] // ProxiedHeader of its answers
}

func newFront(t *testing.T) *front {
	t.Helper()
	target, err := url.Parse(testenv.Config(1).Host)
	if err != nil {
		t.Fatal(err)
	}
	through, err := rest.TransportFor(testenv.Config(1))
	if err != nil {
		t.Fatal(err)
	}
	f := &front{}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Header.Del("Authorization") },
		Transport: through, FlushInterval: -1,
	}
	f.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.closed.Load() {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/readyz" && f.unready.Load() > 0 {
			f.unready.Add(-1)
			http.Error(w, "[-]etcd failed: reason withheld", http.StatusInternalServerError)
			return
		}
		if h := f.header.Load(); h != nil {
			w.Header().Set(fleetv1alpha1.ProxiedHeader, *h)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// kubeconfig returns a kubeconfig for server 1 through the front, with other credentials.
func (f *front) kubeconfig(t *testing.T) []byte {
	t.Helper()
	return edit(t, testenv.Kubeconfig(1), func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		c.Server = f.URL
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
		*u = clientcmdapi.AuthInfo{Token: "whatever"}
	})
}

func (f *fleet) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{}
	f.get(t, client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: name}, s)
	return s
}

// TestJoinAgain renews credentials that work. The cases cover the ways in which the renewal can
// fail.
func TestJoinAgain(t *testing.T) {
	f := startFleet(t, Options{})
	before := f.joinReady(t, "one", testenv.Kubeconfig(1))
	credentials := f.secret(t, "one").Data
	unchanged := func(t *testing.T) {
		t.Helper()
		if diff := cmp.Diff(credentials, f.secret(t, "one").Data); diff != "" {
			t.Error("the credentials are others than before")
		}
		if diff := cmp.Diff(before.Spec, f.cluster(t, "one").Spec); diff != "" {
			t.Errorf("the Cluster changed (-before +after):\n%s", diff)
		}
		f.afterProbes(t, "one", 5)
		if !f.member(t, "one").Reachable() {
			t.Error("the cluster is unreachable")
		}
	}
	refusedWith := func(t *testing.T, err error, reason string) {
		t.Helper()
		if refused, ok := errors.AsType[*JoinError](err); !ok || refused.Reason != reason {
			t.Fatalf("join: %v, want it refused with %s", err, reason)
		}
	}

	t.Run("HubCannotReachIt", func(t *testing.T) {
		door := newFront(t)
		_, err := Join(t.Context(), f.hub, JoinOptions{
			Name: "one", Kubeconfig: door.kubeconfig(t), Labels: map[string]string{"a": "b"},
			// The caller reaches the cluster. After the caller's checks the hub tries it, and
			// cannot.
			Progress: func(step string) {
				door.closed.Store(door.closed.Load() || strings.Contains(step, "the hub has tried"))
			},
		})
		refusedWith(t, err, clusterv1alpha1.ReasonUnreachable)
		unchanged(t)
	})
	t.Run("HubIsBehindItsOwnProxy", func(t *testing.T) {
		door, name := newFront(t), "one"
		_, err := Join(t.Context(), f.hub, JoinOptions{
			Name: "one", Kubeconfig: door.kubeconfig(t),
			Progress: func(step string) {
				if strings.Contains(step, "the hub has tried") {
					door.header.Store(&name)
				}
			},
		})
		refusedWith(t, err, clusterv1alpha1.ReasonThroughHub)
		unchanged(t)
	})
	t.Run("Renewed", func(t *testing.T) {
		door := newFront(t)
		f.join(t, "one", door.kubeconfig(t))
		c := f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		if c.Spec.APIEndpoint != door.URL || c.Status.ID != before.Status.ID {
			t.Errorf("endpoint %s and id %s, want the new address of the same cluster", c.Spec.APIEndpoint, c.Status.ID)
		}
		if s := f.secret(t, "one"); string(s.Data[keyToken]) != "whatever" || len(s.Data[keyNext]) > 0 {
			t.Errorf("the Secret has the keys %v, want the new credentials alone", len(s.Data))
		}
		f.join(t, "one", testenv.Kubeconfig(1))
		f.until(t, "one", readyNow, metav1.ConditionTrue, clusterv1alpha1.ReasonReady)
		unchanged(t)
	})
	t.Run("HubIsNotThere", func(t *testing.T) {
		f.stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: "one"}
		go func() { // the join times out while it waits for the hub
			_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
				s := &corev1.Secret{}
				return f.hub.Get(ctx, key, s) == nil && len(s.Data[keyNext]) > 0, nil
			})
			time.AfterFunc(2*time.Second, cancel)
		}()
		_, err := Join(ctx, f.hub, JoinOptions{Name: "one", Kubeconfig: newFront(t).kubeconfig(t)})
		refusedWith(t, err, ReasonNotConfirmed)
		if diff := cmp.Diff(credentials, f.secret(t, "one").Data); diff != "" {
			t.Error("the credentials are others than before")
		}
	})
	t.Run("HubWasKilledWhenItHadAccepted", func(t *testing.T) {
		door := newFront(t)
		cluster, secret, err := fromKubeconfig(JoinOptions{Name: "one", Kubeconfig: door.kubeconfig(t)})
		if err != nil {
			t.Fatal(err)
		}
		next := newCandidate(cluster, secret)
		next.Accepted = true
		raw, err := json.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		half := f.secret(t, "one")
		half.Data[keyNext] = raw
		if err := f.hub.Update(t.Context(), half); err != nil {
			t.Fatal(err)
		}
		g := runFleet(t, Options{})
		defer g.stop()
		eventually(t, "the new credentials are taken", func() (bool, string) {
			c, s := g.cluster(t, "one"), g.secret(t, "one")
			m, ok := g.registry.Member("one")
			return c.Spec.APIEndpoint == door.URL && string(s.Data[keyToken]) == "whatever" && len(s.Data[keyNext]) == 0 && ok && m.Reachable(),
				c.Spec.APIEndpoint
		})
	})
}

// TestThroughHub: an address that leads through a hub is refused. It is recognized by its path
// or by a header.
func TestThroughHub(t *testing.T) {
	f := startFleet(t, Options{})
	door, name := newFront(t), "oak"
	path := "/apis/fleet.orrery.dev/v1alpha1/clusters/oak/proxy"
	mounted := edit(t, testenv.Kubeconfig(1), func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://hub.example" + path })
	door.header.Store(&name)
	for name, kubeconfig := range map[string][]byte{"Path": mounted, "Header": door.kubeconfig(t)} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(t.Context(), f.hub, JoinOptions{Name: "loop", Kubeconfig: kubeconfig})
			refused, ok := errors.AsType[*JoinError](err)
			if !ok || refused.Reason != clusterv1alpha1.ReasonThroughHub || !strings.Contains(err.Error(), "the cluster's own API server") {
				t.Errorf("join: %v, want it refused with a way out", err)
			}
		})
	}
	// The same with Clusters that were written with kubectl.
	for name, kubeconfig := range map[string][]byte{"path": mounted, "header": door.kubeconfig(t)} {
		cluster, secret, err := fromKubeconfig(JoinOptions{Name: name, Kubeconfig: kubeconfig})
		if err != nil {
			t.Fatal(err)
		}
		if err := store(t.Context(), f.hub, nil, cluster, secret); err != nil {
			t.Fatal(err)
		}
		c := f.until(t, name, readyNow, metav1.ConditionFalse, clusterv1alpha1.ReasonThroughHub)
		if m := f.member(t, name); m.Reachable() || c.Status.ID != "" {
			t.Errorf("%s: reachable %t with id %q", name, m.Reachable(), c.Status.ID)
		}
	}
}
