package agent_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
	"orrery.dev/orrery/internal/tunnel/manifest"
)

// killer is a proxy of the API server that kills a process at one of its writes: before it forwards
// the write, or after the write and before the answer.
type killer struct {
	server *httptest.Server

	mu    sync.Mutex
	count int
	at    int // number of the write; 0: none
	after bool
	kill  func()
	what  string // write at which the process was killed
}

func newKiller(t *testing.T) *killer {
	t.Helper()
	k := &killer{}
	transport, err := rest.TransportFor(oak.DirectConfig())
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(oak.DirectConfig().Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(to)
		p.Out.Header.Del("Authorization")
	}, Transport: transport, ErrorLog: log.New(io.Discard, "", 0)}
	k.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/leases/") && r.Method == http.MethodPatch && r.ContentLength > 120 {
			proxy.ServeHTTP(w, r)
			return
		}
		if k.hit(r, false) {
			panic(http.ErrAbortHandler)
		}
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		if k.hit(r, true) {
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	k.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	k.server.StartTLS()
	t.Cleanup(k.server.Close)
	return k
}

// hit counts a write, and kills the process if it is the chosen one.
func (k *killer) hit(r *http.Request, after bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !after {
		k.count++
	}
	if k.kill == nil || k.at == 0 || k.count != k.at || k.after != after {
		return false
	}
	k.kill()
	k.kill, k.what = nil, r.Method+" "+r.URL.Path
	return true
}

// process starts an agent that can be killed.
func (k *killer) process(t *testing.T, at int, after bool) (exited chan error, out *bytes.Buffer) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.server.Certificate().Raw})
	testenv.Programs()
	cmd := exec.Command(binary, "cluster", "--kubeconfig", kubeconfig(t, k.server.URL, ca, "any"), "--replica", "a")
	out = &bytes.Buffer{}
	cmd.Stderr = out
	k.mu.Lock()
	k.count, k.at, k.after, k.what = 0, at, after, ""
	k.kill = func() { _ = cmd.Process.Kill() }
	if err := cmd.Start(); err != nil {
		k.mu.Unlock()
		t.Fatal(err)
	}
	k.mu.Unlock()
	exited = make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return exited, out
}

// TestKilled kills the agent before each write of its enrolment and removal, and after the last
// one. The next agent continues: one key redeems the token, and in the end nothing is left.
func TestKilled(t *testing.T) {
	k := newKiller(t)
	t.Cleanup(func() { clean(t) })
	const last = "DELETE /apis/rbac.authorization.k8s.io/v1/clusterroles/" + agent.Name
	what := ""
	for at := 1; what != last; at++ {
		what = k.round(t, at, false)
		t.Logf("killed at write %d: %s", at, what)
		if what == last {
			k.round(t, at, true)
		}
	}
}

// round makes an agent enrol and then remove itself. The agent is killed at one of its writes, and
// another one continues. It returns which write that was.
func (k *killer) round(t *testing.T, at int, after bool) (what string) {
	t.Helper()
	h := newHub(t)
	oak.Apply(t, h.manifest(fmt.Sprintf("token-%d-%t", at, after), nil))
	h.mu.Lock()
	h.onReport = func() {
		h.gone = true
		go h.gateway.Recheck(context.Background(), "oak")
	}
	h.mu.Unlock()
	exited, out := k.process(t, at, after)
	err := <-exited
	k.mu.Lock()
	what = k.what
	k.mu.Unlock()
	if what == "" {
		t.Fatalf("the agent ended by itself at write %d: %v\n%s", at, err, out)
	}
	if !after {
		exited, out = k.process(t, 0, false)
		if err := <-exited; err != nil {
			t.Fatalf("the next agent: %v\n%s", err, out)
		}
	}
	left(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	for token, user := range h.tokens {
		if user == "" || h.redeemed > 2 {
			t.Errorf("killed at %s: %s was redeemed %d times, by %q", what, token, h.redeemed, user)
		}
	}
	return what
}

// TestNamespaceStays: the namespace stays as it was, also one that existed before, with a Secret
// that the agent cannot see.
func TestNamespaceStays(t *testing.T) {
	for name, before := range map[string]string{
		"Made":        "",
		"ThereBefore": "apiVersion: v1\nkind: Namespace\nmetadata: {name: orrery-system}\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			t.Cleanup(func() { clean(t) })
			if before != "" {
				oak.Apply(t, before)
			}
			oak.Apply(t, h.manifest("one", nil))
			oak.Apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: theirs, namespace: orrery-system}\n")
			r := run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
			h.reaches()
			h.leave()
			h.gateway.Recheck(t.Context(), "oak")
			if err := <-r.ended; err != nil {
				t.Fatal(err)
			}
			left(t)
			oak.Object(t, "v1", "Secret", tunnel.Namespace, "theirs")
		})
	}
}

// TestNothingApplied: an agent without an applied manifest says what to do, and ends after a while.
func TestNothingApplied(t *testing.T) {
	for name, applied := range map[string]bool{"Never": false, "NotAnyMore": true} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			o := options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a")
			o.Timing.Exit = time.Second
			if applied {
				o.Timing.Exit = 10 * time.Second // it connects in less
				apply(t, h.manifest("one", nil))
			}
			r := run(t, o)
			if applied {
				h.reaches()
				oak.Remove(t, "v1", "Secret", tunnel.Namespace, agent.Name)
			}
			if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "orrery cluster join --pull") {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// TestRemovedByAnother: an agent whose cluster has left also ends if another agent has removed
// everything.
func TestRemovedByAnother(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	source := agent.Kubeconfig(kubeconfig(t, "", nil, ""), "")
	one, two := run(t, options(source, "a")), run(t, options(source, "b"))
	h.awaitReplicas(2)
	h.reaches()
	h.leave()
	h.gateway.Recheck(t.Context(), "oak")
	for _, r := range []*running{one, two} {
		if err := <-r.ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	}
	left(t)
}

// TestOwnRights: an agent with only its ServiceAccount enrols, and removes everything.
func TestOwnRights(t *testing.T) {
	h := newHub(t)
	shop := func(o *manifest.Options) {
		o.Image = "registry.example/agent:1" // so that the Deployment is removed as well
		o.Agent = &clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: []string{"shop"}}
	}
	t.Cleanup(func() { oak.Remove(t, "v1", "Namespace", "", "shop") })
	apply(t, h.manifest("one", shop))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, token(t, agent.Name)), ""), "a"))
	h.reaches()
	h.leave()
	h.gateway.Recheck(t.Context(), "oak")
	left(t)
	gone(t, []named{
		{rbacv1.SchemeGroupVersion.String(), "Role", "shop", agent.HubAccount}, {rbacv1.SchemeGroupVersion.String(), "RoleBinding", "shop", agent.HubAccount},
	})
	if ns := oak.Object(t, "v1", "Namespace", "", "shop"); ns.GetDeletionTimestamp() != nil {
		t.Error("the namespace of the workloads is being deleted")
	}
}
