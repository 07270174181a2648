package member

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// flaky is an API server that can be told to fail the next probes.
type flaky struct {
	*httptest.Server

	fail    atomic.Int32 // so many
	probed  atomic.Int32
	another atomic.Bool  // another cluster answers
	slow    atomic.Int64 // nanoseconds that each answer takes
}

func newFlaky(t *testing.T) *flaky {
	t.Helper()
	f := &flaky{}
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
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		time.Sleep(time.Duration(f.slow.Load()))
		mux.ServeHTTP(w, q)
	}))
	f.EnableHTTP2 = true // as API servers: all requests take one connection
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// join makes the server a member, which is probed all the time and asked for its identity once an hour unless there is cause to.
func (f *flaky) join(t *testing.T) (*Registry, *Member) {
	t.Helper()
	return f.joinWith(t, Options{ProbeInterval: 2 * time.Millisecond, DiscoveryInterval: time.Hour})
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

// TestIdentityAfterANewConnection: a gateway that leads new connections to another cluster is noticed by the next probe.
func TestIdentityAfterANewConnection(t *testing.T) {
	s := newFlaky(t)
	_, m := s.join(t)
	s.another.Store(true)
	target := s.probed.Load() + 3 // on the old connection, which ends where it did
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

// TestSlowIsNotLost: a cluster that takes a good part of a probe's patience for each answer, and for all of them together much
// more than that, is found, known again on new connections, and never lost.
func TestSlowIsNotLost(t *testing.T) {
	s := newFlaky(t)
	const patience = 3 * time.Second
	s.slow.Store(int64(patience / 4)) // it is asked six questions
	r, m := s.joinWith(t, Options{ProbeInterval: 2 * time.Millisecond, ProbeTimeout: patience, DiscoveryInterval: time.Hour})
	var lost atomic.Bool
	r.Subscribe(func(Event) {
		if m.Lost() {
			lost.Store(true)
		}
	})
	m.mu.RLock()
	before := m.contact.identity
	m.mu.RUnlock()
	s.CloseClientConnections()
	eventually(t, "it is asked again who it is", func() (bool, string) {
		m.mu.RLock()
		defer m.mu.RUnlock()
		return m.contact.identity.After(before), fmt.Sprint(m.contact.state)
	})
	if lost.Load() {
		t.Error("it counted as lost")
	}
}

// TestDialsAtOnce: clusters that do not answer are dialled in turn.
func TestDialsAtOnce(t *testing.T) {
	var now, most atomic.Int32
	ended := make(chan struct{}, 4*dialsAtOnce)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		select { // long enough for all places to be taken
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
		<-ended // everyone has its turn
	}
	if n := most.Load(); n != dialsAtOnce {
		t.Errorf("%d were dialled at once, want %d", n, dialsAtOnce)
	}
}
