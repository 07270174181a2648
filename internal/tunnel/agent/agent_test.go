package agent_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
	"orrery.dev/orrery/internal/tunnel/manifest"
)

// TestTwoReplicas: one agent enrols, and both connect with one certificate. When the agent with the
// Lease is lost, the other one takes over.
func TestTwoReplicas(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	source := agent.Kubeconfig(kubeconfig(t, "", nil, ""), "")
	a, b := run(t, options(source, "a")), run(t, options(source, "b"))
	h.awaitReplicas(2)
	h.reaches()
	if err := h.once(); err != nil {
		t.Error(err)
	}
	holder := func() string {
		lease := oak.Object(t, "coordination.k8s.io/v1", "Lease", tunnel.Namespace, agent.Name)
		spec, _ := lease.Object["spec"].(map[string]any)
		name, _ := spec["holderIdentity"].(string)
		return name
	}
	h.mu.Lock()
	reports := len(h.reports)
	h.mu.Unlock()
	first := holder()
	map[string]*running{"a": a, "b": b}[first].stop()
	testenv.Eventually(t, "the other takes the Lease, and reports", testenv.Patience, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if now := holder(); now == first || now == "" || len(h.reports) == reports {
			return fmt.Errorf("%q has the Lease, %d reports", now, len(h.reports))
		}
		return nil
	})
	h.awaitReplicas(1)
	h.reaches()
}

// TestLostLease: an agent that loses the Lease while it runs sends no more reports, and keeps its
// tunnel. The new holder reports.
func TestLostLease(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
	h.reaches()
	thief := `{"spec": {"holderIdentity": "thief", "renewTime": "2100-01-01T00:00:00.000000Z", "leaseDurationSeconds": 2}}`
	oak.MergePatch(t, "coordination.k8s.io/v1", "Lease", tunnel.Namespace, agent.Name, thief)
	h.mu.Lock()
	h.reports = nil
	h.mu.Unlock()
	h.awaitReplicas(1)
	// The other holder does not renew, and its clock does not matter: the agent takes the Lease
	// after it was unchanged for its duration.
	h.reaches()
	lease := oak.Object(t, "coordination.k8s.io/v1", "Lease", tunnel.Namespace, agent.Name)
	if spec, _ := lease.Object["spec"].(map[string]any); spec["holderIdentity"] != "a" {
		t.Errorf("the Lease is %v", spec)
	}
}

// TestRejoin: with a new token the agents keep their key, or create another if the manifest says
// so. A token that the hub refuses costs them nothing.
func TestRejoin(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
	h.reaches()
	redeemed := func(token string, same bool) {
		t.Helper()
		testenv.Eventually(t, "token "+token+" is redeemed", testenv.Patience, func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if by, first := h.tokens[token], h.tokens["one"]; by == "" || (by == first) != same {
				return fmt.Errorf("by %q, the first by %q; want the same key: %v", by, first, same)
			}
			return nil
		})
		h.reaches()
		h.awaitReplicas(1)
	}
	oak.Apply(t, h.manifest("two", nil))
	redeemed("two", true)

	refused := h.manifest("three", nil)
	h.mu.Lock()
	delete(h.tokens, "three") // it has ended
	before := h.refused
	h.mu.Unlock()
	oak.Apply(t, refused)
	refusals := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.refused - before
	}
	testenv.Eventually(t, "a token is refused", testenv.Patience, func() error {
		if refusals() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	h.reaches()

	oak.Apply(t, h.manifest("four", func(o *manifest.Options) { o.Replace = true }))
	redeemed("four", false)
	if n := refusals(); n != 1 {
		t.Errorf("the refused token was sent %d times, want once", n)
	}
}

// TestRenewal: a certificate is renewed after a third of its lifetime, with the same key.
func TestRenewal(t *testing.T) {
	h := newHub(t)
	h.life = 100 * time.Second // and a minute of it is over already
	apply(t, h.manifest("one", nil))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
	testenv.Eventually(t, "the certificate is renewed", testenv.Patience, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.renewals == 0 {
			return errors.New("it was not")
		}
		h.life = time.Hour * 24
		return nil
	})
	h.reaches()
	if err := h.once(); err != nil {
		t.Error(err)
	}
}

// TestSmallerProfile: rights that an earlier manifest gave, and the present one does not, are
// removed.
func TestSmallerProfile(t *testing.T) {
	h := newHub(t)
	for _, ns := range []string{"shop", "bank"} {
		t.Cleanup(func() { oak.Remove(t, "v1", "Namespace", "", ns) })
	}
	profile := func(p clusterv1alpha1.AgentProfile, namespaces ...string) func(*manifest.Options) {
		return func(o *manifest.Options) { o.Agent = &clusterv1alpha1.Agent{Profile: p, Namespaces: namespaces} }
	}
	apply(t, h.manifest("one", nil))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
	h.reaches()
	has := func(what, verb, resource, ns string, want bool) {
		t.Helper()
		testenv.Eventually(t, what, testenv.Patience, func() error {
			if got := may(t, agent.HubAccount, check{verb: verb, resource: resource, namespace: ns}); got != want {
				return fmt.Errorf("%s %s in %q: %t", verb, resource, ns, got)
			}
			return nil
		})
	}
	has("All", "delete", "nodes", "", true)
	oak.Apply(t, h.manifest("two", profile(clusterv1alpha1.AgentProfilePlacement, "shop", "bank")))
	has("Placement takes the rest away", "delete", "nodes", "", false)
	has("Placement in both", "create", "secrets", "bank", true)
	oak.Apply(t, h.manifest("three", profile(clusterv1alpha1.AgentProfilePlacement, "shop")))
	has("Placement in one", "create", "secrets", "bank", false)
	has("Placement in one", "create", "secrets", "shop", true)
	oak.Apply(t, h.manifest("four", profile(clusterv1alpha1.AgentProfileMirror)))
	has("Mirror", "create", "secrets", "shop", false)
	has("Mirror", "list", "pods", "shop", true)
}

// TestProxy: agents reach the hub through a proxy with CONNECT, and through one that ends TLS.
// Neither proxy sees a token.
func TestProxy(t *testing.T) {
	t.Run("CONNECT", func(t *testing.T) {
		h := newHub(t)
		apply(t, h.manifest("one", nil))
		var mu sync.Mutex
		asked := map[string]int{}
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			asked[r.Method+" "+r.Host]++
			mu.Unlock()
			if r.Method != http.MethodConnect {
				http.Error(w, "this proxy takes CONNECT", http.StatusMethodNotAllowed)
				return
			}
			to, err := new(net.Dialer).DialContext(r.Context(), "tcp", r.Host)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			from, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				_ = to.Close()
				return
			}
			_ = buffered.Flush()
			fmt.Fprint(from, "HTTP/1.1 200 OK\r\n\r\n")
			go tunnel.Pipe(from, to)
		}))
		defer proxy.Close()
		o := options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a")
		u, err := url.Parse(proxy.URL)
		if err != nil {
			t.Fatal(err)
		}
		o.Proxy = http.ProxyURL(u)
		run(t, o)
		h.reaches()
		mu.Lock()
		defer mu.Unlock()
		want := "CONNECT " + h.server.Listener.Addr().String()
		if len(asked) != 1 || asked[want] < 4 { // a redemption, a report, and spares
			t.Errorf("the proxy was asked %v, want %s alone", asked, want)
		}
	})
	t.Run("EndsTLS", func(t *testing.T) {
		h := newHub(t)
		var mu sync.Mutex
		var seen bytes.Buffer
		inner := h.behind()
		balancer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				seen.Write(body)
				mu.Unlock()
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			inner.ServeHTTP(w, r)
		}))
		defer balancer.Close()
		const token = "a-token-that-nobody-may-see"
		apply(t, h.manifest(token, func(o *manifest.Options) {
			o.URL, o.CA = balancer.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: balancer.Certificate().Raw})
		}))
		r := run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
		h.reaches()
		r.stop()
		<-r.ended
		mu.Lock()
		defer mu.Unlock()
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, secret := range []string{token, h.credentials.Token} {
			if bytes.Contains(seen.Bytes(), []byte(secret)) || seen.Len() == 0 {
				t.Error("the balancer has seen a token, or nothing at all")
			}
		}
	})
}

// TestWrongAuthority: a server without a certificate of the manifest's authority learns nothing,
// however often the agent tries.
func TestWrongAuthority(t *testing.T) {
	h := newHub(t)
	hellos := make(chan struct{})
	impostor := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the agent speaks to an impostor") }))
	impostor.Config.ErrorLog = log.New(io.Discard, "", 0) // the agent aborts the handshake
	own, err := pki.NewAuthority("impostor", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := own.Issue(pki.Leaf{Name: "impostor", CommonName: "impostor", Server: true, IPs: []string{"127.0.0.1"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	impostor.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		select {
		case hellos <- struct{}{}:
		default:
		}
		return nil, nil //nolint:nilnil // that of the server
	}}
	impostor.StartTLS()
	t.Cleanup(impostor.Close)
	apply(t, h.manifest("one", func(o *manifest.Options) { o.URL = impostor.URL }))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
	for range 3 {
		select {
		case <-hellos:
		case <-time.After(testenv.Patience):
			t.Fatal("the agent does not try")
		}
	}
}

// TestKubeconfig: unsupported fields of a kubeconfig are refused with a message that names them.
func TestKubeconfig(t *testing.T) {
	ca := authorities(t, oak.DirectConfig())
	good := func() clientcmdapi.Config {
		return clientcmdapi.Config{
			CurrentContext: "x",
			Clusters:       map[string]*clientcmdapi.Cluster{"x": {Server: "https://[::1]", CertificateAuthorityData: ca}},
			AuthInfos:      map[string]*clientcmdapi.AuthInfo{"x": {Token: "a"}},
			Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		}
	}
	for name, tc := range map[string]struct {
		change func(*clientcmdapi.Config)
		says   string
	}{
		"Good":      {func(*clientcmdapi.Config) {}, ""},
		"NoContext": {func(c *clientcmdapi.Config) { c.CurrentContext = "y" }, `no context "y"`},
		"PlainHTTP": {func(c *clientcmdapi.Config) { c.Clusters["x"].Server = "http://a" }, "https"},
		"Exec": {func(c *clientcmdapi.Config) {
			c.AuthInfos["x"].Exec = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "a", InteractiveMode: "Never"}
		}, "runs no other program"},
		"NoUser": {func(c *clientcmdapi.Config) { c.AuthInfos["x"].Token = "" }, "no token and no certificate"},
		"Unverified": {func(c *clientcmdapi.Config) {
			c.Clusters["x"].InsecureSkipTLSVerify, c.Clusters["x"].CertificateAuthorityData = true, nil
		}, "insecure-skip-tls-verify"},
		"NoCA":  {func(c *clientcmdapi.Config) { c.Clusters["x"].CertificateAuthorityData = nil }, "certificate-authority-data"},
		"Proxy": {func(c *clientcmdapi.Config) { c.Clusters["x"].ProxyURL = "http://proxy" }, "proxy-url"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			tc.change(&c)
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := clientcmd.WriteToFile(c, path); err != nil {
				t.Fatal(err)
			}
			_, err := agent.Kubeconfig(path, "")()
			if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

// TestHealth: a process serves its health endpoints.
func TestHealth(t *testing.T) {
	h := newHub(t)
	port, err := process.ReservePort("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := port.Release(); err != nil {
			t.Error(err)
		}
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number))
	probe := func(path string) (int, string) {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	o := options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a")
	o.HealthAddress = address
	run(t, o)
	testenv.Eventually(t, "it is live, and not ready", testenv.Patience, func() error {
		live, why := probe("/healthz")
		ready, reason := probe("/readyz")
		if live != http.StatusOK || ready != http.StatusServiceUnavailable || !strings.Contains(reason, "not enrolled") {
			return fmt.Errorf("%d %s, %d %s", live, why, ready, reason)
		}
		return nil
	})
	apply(t, h.manifest("one", nil))
	testenv.Eventually(t, "it is ready", testenv.Patience, func() error {
		if ready, reason := probe("/readyz"); ready != http.StatusOK {
			return fmt.Errorf("%d %s", ready, reason)
		}
		return nil
	})
}

// TestSilent: an agent without a connection for too long ends, so that it is restarted.
func TestSilent(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	o := options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a")
	o.Timing.Exit = 10 * time.Second // it connects in less
	r := run(t, o)
	h.reaches()
	h.gateway.Close()
	h.server.CloseClientConnections()
	h.server.Listener.Close()
	if err := <-r.ended; !errors.Is(err, tunnel.ErrSilent) {
		t.Errorf("it ended with %v", err)
	}
}
