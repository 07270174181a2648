package member

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// memberAt returns a member whose API server is server.
func memberAt(t *testing.T, server *hostile) *Member {
	t.Helper()
	r := &Registry{options: Options{}.withDefaults(), members: map[string]*Member{}, ctx: t.Context()}
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "evil"}, Spec: clusterv1alpha1.ClusterSpec{APIEndpoint: server.URL},
	}
	secret := &corev1.Secret{Data: map[string][]byte{keyToken: []byte("hunter2"), keyCA: server.ca()}}
	c, err := newConnection(dialDirectly, cluster, secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	m := newMember(r, cluster)
	m.reconnect(c)
	return m
}

// TestRedirectsAreNotFollowed: a member cannot redirect the hub's requests, which carry a
// token, to another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var reached atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(elsewhere.Close)
	for _, code := range []int{301, 302, 303, 307, 308} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			evil := newHostile(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL+"/latest/meta-data", code)
			})
			m := memberAt(t, evil)
			pods := m.Dynamic().Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
			_, list := pods.List(t.Context(), metav1.ListOptions{})
			_, watch := pods.Watch(t.Context(), metav1.ListOptions{})
			del := pods.Namespace("a").Delete(t.Context(), "b", metav1.DeleteOptions{})
			_, look := (&discoverer{connection: m.current()}).look(t.Context(), &APIs{})
			probe := ready(t.Context(), m.current().fresh, m.current(), patience)
			for what, err := range map[string]error{"list": list, "watch": watch, "delete": del, "discovery": look, "probe": probe} {
				if err == nil || !strings.Contains(err.Error(), "redirect") {
					t.Errorf("%s: %v, want the redirect refused", what, err)
				}
			}
		})
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("the target of the redirects got %d requests", n)
	}
}

// TestUpgradesAreSentOnce: an upgrade may run a command, so it is not repeated if the
// connection breaks before the answer, although it is a GET.
func TestUpgradesAreSentOnce(t *testing.T) {
	var asked atomic.Int32
	server := newHostile(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		http.Error(w, "no such container", http.StatusBadRequest) // leaves the connection reusable
	})
	p := memberAt(t, server).Passage()
	for _, answered := range []bool{true, false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/exec", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		resp, err := p.Upgrades.RoundTrip(req)
		if (err == nil) != answered {
			t.Fatal(err)
		}
		if err != nil {
			continue
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("2 requests arrived %d times", n)
	}
}

// TestAnswersAreBounded: the size of an answer that the hub reads from a member is limited, so
// that the answer cannot fill the hub's memory. A watch as a whole has no limit, only its
// events.
func TestAnswersAreBounded(t *testing.T) {
	event := func(size int) []byte {
		return []byte(`{"type":"ADDED","object":{"kind":"ConfigMap","data":{"a\"}":"` + strings.Repeat("x", size) + `","b":["}{"]}}}` + "\n")
	}
	filler := bytes.Repeat([]byte("x"), 1<<20)
	endless := func(head string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, err := io.WriteString(w, head)
			for err == nil {
				_, err = w.Write(filler)
			}
		}
	}
	nested := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, `{"type":"ADDED","object":{"items":[`)
		for err == nil { // each line looks like an event
			_, err = w.Write(bytes.Repeat([]byte(`{"kind":"Pod"},`+"\n"), 1000))
		}
	}
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		most   int64 // bytes that are read
		whole  bool  // read to its end without an error
	}{
		"List":      {"/api/v1/pods", endless(`{"items":["`), maxList, false},
		"OfOneType": {"/apis/apps/v1/namespaces/a/deployments", endless(`{"items":["`), maxList, false},
		"Object":    {"/api/v1/namespaces/a/pods/b", endless(`{"kind":"`), maxObject, false},
		"Namespace": {"/api/v1/namespaces/a", endless(`{"kind":"`), maxObject, false},
		"Discovery": {"/apis", endless(`{"items":["`), maxObject, false},
		"Error": {"/api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			endless("no: ")(w, r)
		}, maxObject, false},
		"Event":       {"/api/v1/pods?watch=1", endless(`{"type":"`), maxObject, false},
		"NestedEvent": {"/api/v1/pods?watch=1", nested, maxObject, false},
		"NoJSON": {"/api/v1/pods?watch=1", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusOK)
			for {
				if _, err := w.Write(filler); err != nil {
					return
				}
			}
		}, maxObject, false},
		"ManyEvents": {"/api/v1/pods?watch=true", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for range 12 {
				if _, err := w.Write(event(7 << 20)); err != nil {
					return
				}
			}
		}, 12*(7<<20) + 4096, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := memberAt(t, newHostile(t, c.answer))
			client, err := rest.HTTPClientFor(m.Config())
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Get(m.Config().Host + c.path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			read, err := io.Copy(io.Discard, resp.Body)
			if (err == nil) != c.whole || err != nil && !strings.Contains(err.Error(), "larger than") {
				t.Errorf("it was read with %v, want whole %t", err, c.whole)
			}
			if read > c.most {
				t.Errorf("%d bytes were read, want at most %d", read, c.most)
			}
		})
	}
}

// TestAnswersTogetherAreBounded: the answers that are read from a member at the same time are
// limited together. A closed answer does not count any more.
func TestAnswersTogetherAreBounded(t *testing.T) {
	part := bytes.Repeat([]byte("x"), 1<<20)
	m := memberAt(t, newHostile(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 200 {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	client, err := rest.HTTPClientFor(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	read := func() (io.Closer, error) {
		resp, err := client.Get(m.Config().Host + "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.Body, err
	}
	var open []io.Closer
	for range 2 {
		body, err := read()
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, body)
	}
	body, err := read()
	if err == nil || !strings.Contains(err.Error(), "together") {
		t.Errorf("a third answer: %v, want it refused", err)
	}
	for _, b := range append(open, body) {
		b.Close()
	}
	if body, err = read(); err != nil {
		t.Errorf("after that: %v", err)
	}
	body.Close()
}

// TestEventsAreToldApart: the end of each event is found, for any split of the stream.
func TestEventsAreToldApart(t *testing.T) {
	text := []byte(`{"a":"\\"}` + "\n" + ` {"b":[{"c":"}\"{"}]}{"d":{}}`)
	if !json.Valid(text[:10]) {
		t.Fatal("the text is none")
	}
	for size := 1; size <= len(text); size++ {
		b := &boundedBody{events: true}
		for rest := text; len(rest) > 0; {
			n := min(size, len(rest))
			b.held = b.scan(rest[:n])
			rest = rest[n:]
		}
		if b.held != 0 || b.depth != 0 || b.quoted {
			t.Errorf("in parts of %d: %d bytes are held at depth %d", size, b.held, b.depth)
		}
	}
}
