package member

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// flaky is an API server that fails the next probes on request.
type flaky struct {
	*httptest.Server

	fail    atomic.Int32 // number of probes to fail
	probed  atomic.Int32
	another atomic.Bool // another cluster answers
}

func newFlaky(t *testing.T) *flaky {
	t.Helper()
	f := &flaky{}
	f.Server = httptest.NewUnstartedServer(f.answers())
	f.EnableHTTP2 = true // as API servers do: all requests share a connection
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// answers returns the handler of the API server.
func (f *flaky) answers() http.Handler {
	answer := func(w http.ResponseWriter, body string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		defer f.probed.Add(1)
		if f.fail.Add(-1) >= 0 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		answer(w, "ok")
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { answer(w, `{"gitVersion":"v1.2.3"}`) })
	mux.HandleFunc("/api/v1/namespaces/kube-system", func(w http.ResponseWriter, _ *http.Request) {
		uid := "the-one"
		if f.another.Load() {
			uid = "another"
		}
		answer(w, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","uid":"`+uid+`"}}`)
	})
	mux.HandleFunc("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","status":{"allowed":true}}`)
	})
	return mux
}

// join makes the server a member. It is probed all the time. Its identity is checked once an
// hour, or when there is a reason.
func (f *flaky) join(t *testing.T) (*Registry, *Member) {
	t.Helper()
	return f.joinWith(t, Options{ProbeInterval: 2 * time.Millisecond, ProbeTimeout: patience, DiscoveryInterval: time.Hour})
}

func (f *flaky) joinWith(t *testing.T, o Options) (*Registry, *Member) {
	t.Helper()
	r := &Registry{options: o.withDefaults(), members: map[string]*Member{}, ctx: t.Context()}
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: clusterv1alpha1.ClusterSpec{APIEndpoint: f.URL},
	}
	c, err := newConnection(dialDirectly, cluster, &corev1.Secret{Data: map[string][]byte{
		"token":  []byte("t"),
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}),
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := r.ensure(cluster)
	t.Cleanup(m.stop)
	m.update(func() { m.accepted = "the-one" })
	m.reconnect(c)
	eventually(t, "the cluster is reachable", func() (bool, string) { return m.Reachable(), "" })
	return r, m
}

// TestIdentityAfterANewConnection: if a gateway leads new connections to another cluster, the
// next probe notices that.
func TestIdentityAfterANewConnection(t *testing.T) {
	s := newFlaky(t)
	_, m := s.join(t)
	s.another.Store(true)
	target := s.probed.Load() + 3 // the old connection leads to the same cluster
	eventually(t, "it is probed on", func() (bool, string) { return s.probed.Load() >= target, "" })
	if !m.Reachable() {
		t.Fatal("the cluster is not reachable any more on a connection that leads to it still")
	}
	s.CloseClientConnections()
	eventually(t, "another cluster is not taken for the one", func() (bool, string) { return !m.Reachable(), "" })
	target = s.probed.Load() + 10
	eventually(t, "it is probed on", func() (bool, string) {
		if m.Reachable() {
			t.Fatal("another cluster is taken for the one")
		}
		return s.probed.Load() >= target, ""
	})
}

func TestHysteresis(t *testing.T) {
	for name, tc := range map[string]struct {
		failures int32
		lost     bool
	}{
		"OneFailure":    {failures: 1},
		"TwoFailures":   {failures: 2},
		"ThreeFailures": {failures: 3, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFlaky(t)
			r, m := s.join(t)
			var lost atomic.Bool
			r.Subscribe(func(Event) {
				if !m.Reachable() {
					lost.Store(true)
				}
			})
			s.fail.Store(tc.failures)
			target := s.probed.Load() + tc.failures + 3
			eventually(t, "the failures are over", func() (bool, string) {
				return s.probed.Load() >= target && m.Reachable(), fmt.Sprint(s.probed.Load())
			})
			if lost.Load() != tc.lost {
				t.Errorf("lost is %t after %d failed probes, want %t", lost.Load(), tc.failures, tc.lost)
			}
		})
	}
}

// inMemory is a cluster without network connections, so that its probes use the time of a
// synctest bubble.
type inMemory struct {
	handler http.Handler
	takes   atomic.Int64 // nanoseconds that each answer takes
	asked   atomic.Int32 // requests for /readyz
}

// RoundTrip implements http.RoundTripper.
func (c *inMemory) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Path == "/readyz" {
		c.asked.Add(1)
	}
	select {
	case <-time.After(time.Duration(c.takes.Load())):
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, q)
	return w.Result(), nil
}

// anonymously sends requests without credentials.
type anonymously struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a anonymously) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Set("X-Anonymous", "true")
	return a.next.RoundTrip(q)
}

// join makes the cluster a member and returns it with its connection.
func (c *inMemory) join(t *testing.T, o Options) (*Registry, *Member, *connection) {
	t.Helper()
	c.handler = (&flaky{}).answers()
	r := &Registry{options: o.withDefaults(), members: map[string]*Member{}, ctx: t.Context()}
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: clusterv1alpha1.ClusterSpec{APIEndpoint: "https://one"},
	}
	connection, err := newConnection(dialDirectly, cluster, &corev1.Secret{Data: map[string][]byte{"token": []byte("t")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	connection.transport, connection.fresh = c, c
	connection.anonymous = anonymously{c}
	m := r.ensure(cluster)
	m.update(func() { m.accepted = "the-one" })
	m.reconnect(connection)
	return r, m, connection
}

// after waits in a synctest bubble until so holds, and returns how long that took.
func after(so func() bool) time.Duration {
	began := time.Now()
	for !so() {
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// TestSlowIsNotLost: each answer of a cluster takes almost the timeout of a probe, and all
// together take much longer. The cluster is found, recognized on new connections, and never
// lost.
func TestSlowIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = 3 * time.Second
		s := &inMemory{}
		s.takes.Store(int64(patience - time.Millisecond)) // six requests are needed
		r, m, c := s.join(t, Options{ProbeInterval: 2 * time.Millisecond, ProbeTimeout: patience, DiscoveryInterval: time.Hour})
		defer m.stop()
		var lost atomic.Bool
		r.Subscribe(func(Event) {
			if m.Lost() {
				lost.Store(true)
			}
		})
		if took := after(m.Reachable); took < 5*patience {
			t.Errorf("it was found after %s: it was not slow", took)
		}
		identity := func() time.Time {
			m.mu.RLock()
			defer m.mu.RUnlock()
			return m.contact.identity
		}
		before := identity()
		c.dialled.Add(1)
		after(func() bool { return identity().After(before) })
		if lost.Load() || !m.Reachable() {
			t.Error("it counted as lost")
		}
		s.takes.Store(int64(patience + time.Millisecond))
		after(m.Lost) // slower than the timeout
	})
}

// TestRefusedWhileStarting: an API server that starts refuses every token. Its cluster counts
// as not ready. If it counted as refusing the hub's credentials, users would join it again.
func TestRefusedWhileStarting(t *testing.T) {
	for name, tc := range map[string]struct {
		ready, anonymous int           // status codes of /readyz while the API server starts
		after            time.Duration // time until the refusal counts; 0: never
	}{
		"SaysThatItIsNotReady":  {http.StatusUnauthorized, http.StatusInternalServerError, 0},
		"RolesAreNotReadYet":    {http.StatusForbidden, http.StatusInternalServerError, 0},
		"IsReady":               {http.StatusUnauthorized, http.StatusOK, time.Nanosecond},
		"RefusesTheAnonymous":   {http.StatusUnauthorized, http.StatusUnauthorized, refusalPatience},
		"ForbidsItTheAnonymous": {http.StatusUnauthorized, http.StatusForbidden, refusalPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &inMemory{}
				_, m, _ := s.join(t, Options{})
				defer m.stop()
				after(m.Reachable)
				synctest.Wait()
				works := s.handler
				s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					code := tc.ready
					if r.Header.Get("X-Anonymous") != "" {
						code = tc.anonymous
					}
					w.WriteHeader(code)
				})
				refused := func() bool {
					m.mu.RLock()
					defer m.mu.RUnlock()
					return m.contact.refused
				}
				began := s.asked.Load()
				after(func() bool { return s.asked.Load() > began })
				waited := 2 * refusalPatience
				if tc.after > 0 {
					waited = after(refused)
				} else {
					time.Sleep(waited)
				}
				if waited < tc.after-time.Second || tc.after > 0 && waited > tc.after+15*time.Second || tc.after == 0 && refused() {
					t.Errorf("refused is %t after %s", refused(), waited)
				}
				synctest.Wait()
				s.handler = works
				after(m.Reachable)
				if refused() {
					t.Error("it counts as one that refuses credentials after it has begun")
				}
			})
		})
	}
}

// TestProbesAtTheDefaults checks the times of docs/operating.md for a server without flags, on
// the clock of a synctest bubble.
func TestProbesAtTheDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &inMemory{}
		_, m, _ := s.join(t, Options{DiscoveryInterval: time.Hour})
		defer m.stop()
		after(m.Reachable)
		next := func() time.Duration {
			asked := s.asked.Load()
			return after(func() bool { return s.asked.Load() > asked })
		}
		next()
		for range 20 {
			if took := next(); took < 9500*time.Millisecond || took > 10501*time.Millisecond {
				t.Errorf("a cluster that answers was probed after %s, want 10 s and 5 %% of them", took)
			}
		}
		asked := s.asked.Load()
		s.takes.Store(int64(time.Hour))
		if took := after(m.Lost); took < 16*time.Second || took > 28*time.Second {
			t.Errorf("a cluster that hangs was lost after %s, want 17 s to 28 s", took)
		}
		if n := s.asked.Load() - asked; n != 3 {
			t.Errorf("it was lost after %d probes, want 3", n)
		}
		s.takes.Store(0)
		if took := after(m.Reachable); took > 7*time.Second {
			t.Errorf("a cluster that answers again was reachable after %s, want 7 s at most", took)
		}
	})
}

// TestDialsAtOnce: at most dialsAtOnce clusters are dialled concurrently, and all are dialled
// in the end.
func TestDialsAtOnce(t *testing.T) {
	var now, most atomic.Int32
	ended := make(chan struct{}, 4*dialsAtOnce)
	taken := make(chan struct{})
	take := sync.OnceFunc(func() { close(taken) })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == dialsAtOnce {
			take()
		}
		select { // until all slots are in use
		case <-taken:
		case <-ctx.Done():
		}
		select { // time in which further dials would come
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
		select {
		case ended <- struct{}{}:
		default:
		}
		return nil, errors.New("nobody answers")
	}
	o := Options{ProbeInterval: time.Hour, ProbeTimeout: time.Minute, DiscoveryInterval: time.Hour}
	r := &Registry{options: o.withDefaults(), members: map[string]*Member{}, ctx: t.Context()}
	for i := range 2 * dialsAtOnce {
		cluster := &clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Spec: clusterv1alpha1.ClusterSpec{APIEndpoint: "https://127.0.0.1:1"},
		}
		c, err := newConnection(dial, cluster, &corev1.Secret{Data: map[string][]byte{"token": []byte("t")}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := r.ensure(cluster)
		t.Cleanup(m.stop)
		m.reconnect(c)
	}
	for range 2 * dialsAtOnce {
		<-ended // every cluster is dialled
	}
	if n := most.Load(); n != dialsAtOnce {
		t.Errorf("%d were dialled at once, want %d", n, dialsAtOnce)
	}
}
