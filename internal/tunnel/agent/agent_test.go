package agent_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
	"orrery.dev/orrery/internal/tunnel/gateway"
	"orrery.dev/orrery/internal/tunnel/manifest"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

var (
	oak    *testenv.Member // has controllers, so that what is owned by what is gone goes
	binary string          // of the agent
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "orrery-agent-test-")
		if err != nil {
			log.Print(err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "orrery-agent")
		if out, err := exec.Command("go", "build", "-o", binary, "orrery.dev/orrery/cmd/orrery-agent").CombinedOutput(); err != nil {
			log.Printf("build the agent: %v\n%s", err, out)
			return 1
		}
		members, err := testenv.StartMembers(dir, 1, "oak")
		if err != nil {
			log.Print(err)
			return 1
		}
		defer members.Stop()
		oak = members.Named("oak")
		return m.Run()
	}())
}

// hub is one as agents see it: a real gateway, and a few lines that redeem.
type hub struct {
	t       *testing.T
	gateway *gateway.Gateway
	server  *httptest.Server
	key     []byte // public, for tunnel.Seal

	mu          sync.Mutex
	authority   *x509.Certificate
	signer      *ecdsa.PrivateKey
	life        time.Duration        // of certificates
	tokens      map[string]string    // by token: the fingerprint of the key that it is for
	redeemed    int                  // how often
	reports     []tunnel.Credentials // in their order
	renewals    int                  // of certificates
	credentials tunnel.Credentials   // the last
	gone        bool                 // the cluster has left
	onReport    func()               // of each report that was taken
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{t: t, tokens: map[string]string{}, life: 90 * 24 * time.Hour}
	sealing, err := tunnel.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	h.key = sealing.PublicKey().Bytes()
	if h.signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	h.authority = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agents"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, h.authority, h.authority, h.signer.Public(), h.signer)
	if err != nil {
		t.Fatal(err)
	}
	if h.authority, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(h.authority)
	h.gateway = gateway.New(gateway.Options{Timing: tunneltest.Timing(), Admit: func(_ context.Context, c *x509.Certificate) (string, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			return "", err
		}
		if h.gone {
			return "", gateway.ErrGone
		}
		return c.Subject.CommonName, nil
	}})
	mux := http.NewServeMux()
	mux.Handle(tunnel.Path, h.gateway)
	mux.Handle(tunnel.ReportPath, h.gateway.Reports(func(_ context.Context, c *x509.Certificate, cluster string, r tunnel.Report) tunnel.Receipt {
		h.mu.Lock()
		defer h.mu.Unlock()
		var given tunnel.Credentials
		if err := tunnel.Open(sealing, cluster, r.Sealed, &given); err != nil {
			return tunnel.Receipt{Refused: err.Error()}
		}
		h.reports, h.credentials = append(h.reports, given), given
		if h.onReport != nil {
			h.onReport()
		}
		if len(r.Request) == 0 {
			return tunnel.Receipt{}
		}
		h.renewals++
		return h.sign(cluster, r.Request)
	}))
	mux.HandleFunc("POST "+tunnel.RedeemPath, func(w http.ResponseWriter, r *http.Request) {
		var redemption tunnel.Redemption
		var proof tunnel.Proof
		err := json.NewDecoder(r.Body).Decode(&redemption)
		if err == nil {
			err = tunnel.Open(sealing, redemption.Cluster, redemption.Sealed, &proof)
		}
		receipt := tunnel.Receipt{}
		if err != nil {
			receipt.Refused = err.Error()
		} else {
			receipt = h.redeem(redemption, proof)
		}
		_ = json.NewEncoder(w).Encode(receipt)
	})
	h.server = httptest.NewUnstartedServer(mux)
	h.server.Config.ErrorLog = log.New(io.Discard, "", 0) // connections are broken on purpose
	h.server.StartTLS()
	t.Cleanup(func() {
		h.gateway.Close()
		h.server.CloseClientConnections()
		h.server.Close()
	})
	return h
}

// redeem takes a token once, for the key that uses it first.
func (h *hub) redeem(r tunnel.Redemption, p tunnel.Proof) tunnel.Receipt {
	h.mu.Lock()
	defer h.mu.Unlock()
	request, err := x509.ParseCertificateRequest(r.Request)
	if err != nil {
		return tunnel.Receipt{Refused: err.Error()}
	}
	user, known := h.tokens[p.Token]
	fingerprint := fmt.Sprintf("%x", sha256.Sum256(request.RawSubjectPublicKeyInfo))
	if !known || user != "" && user != fingerprint {
		return tunnel.Receipt{Refused: "the token opens nothing"}
	}
	if h.gone {
		return tunnel.Receipt{Gone: true}
	}
	h.tokens[p.Token] = fingerprint
	h.redeemed++
	h.credentials = p.Credentials
	return h.sign(r.Cluster, r.Request)
}

func (h *hub) sign(cluster string, request []byte) tunnel.Receipt {
	parsed, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return tunnel.Receipt{Refused: err.Error()}
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cluster}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(h.life),
	}, h.authority, parsed.PublicKey, h.signer)
	if err != nil {
		return tunnel.Receipt{Refused: err.Error()}
	}
	return tunnel.Receipt{Certificate: der}
}

// behind is a balancer that makes TLS to the hub anew.
func (h *hub) behind() *httputil.ReverseProxy {
	h.t.Helper()
	to, err := url.Parse(h.server.URL)
	if err != nil {
		h.t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(to) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
}

// leave has the cluster leave.
func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
}

func (h *hub) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
}

// token makes a token and returns the manifest that has it.
func (h *hub) manifest(token string, change func(*manifest.Options)) string {
	h.t.Helper()
	h.mu.Lock()
	h.tokens[token] = ""
	h.mu.Unlock()
	o := manifest.Options{Cluster: "oak", URL: h.server.URL, CA: h.ca(), Key: h.key, Token: token}
	if change != nil {
		change(&o)
	}
	objects, err := manifest.Objects(o)
	if err != nil {
		h.t.Fatal(err)
	}
	text, err := manifest.YAML(objects)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// apply applies a manifest, and has all of it gone when the test ends.
func apply(t *testing.T, text string) {
	t.Helper()
	t.Cleanup(func() { clean(t) })
	oak.Apply(t, text)
}

// clean removes whatever a manifest made, and waits until it is gone.
func clean(t *testing.T) {
	t.Helper()
	for _, o := range clusterWide() {
		oak.Remove(t, o.apiVersion, o.kind, "", o.name)
	}
	left(t)
}

type named struct{ apiVersion, kind, name string }

func clusterWide() []named {
	const rbac = "rbac.authorization.k8s.io/v1"
	return []named{
		{rbac, "ClusterRoleBinding", agent.AllBinding},
		{rbac, "ClusterRoleBinding", agent.MirrorRole},
		{rbac, "ClusterRoleBinding", agent.MirrorBuiltinRole},
		{rbac, "ClusterRoleBinding", agent.Name},
		{rbac, "ClusterRole", agent.MirrorRole},
		{rbac, "ClusterRole", agent.MirrorBuiltinRole},
		{rbac, "ClusterRole", agent.Name},
		{"v1", "Namespace", tunnel.Namespace},
	}
}

// left waits until nothing of a manifest is there.
func left(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "everything that the manifest made is gone", testenv.Patience, func() error {
		for _, o := range clusterWide() {
			if _, err := oak.Find(context.Background(), o.apiVersion, o.kind, "", o.name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s: %w", o.kind, o.name, errors.Join(errors.New("is there"), err))
			}
		}
		return nil
	})
}

// kubeconfig of an administrator, or of who has a token, through a proxy if one is given.
func kubeconfig(t *testing.T, server string, ca []byte, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	cfg := oak.DirectConfig()
	if server == "" {
		server, ca = cfg.Host, authorities(t, cfg)
	}
	if token == "" {
		token = cfg.BearerToken
	}
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "oak",
		Clusters:       map[string]*clientcmdapi.Cluster{"oak": {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"oak": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"oak": {Cluster: "oak", AuthInfo: "oak"}},
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func authorities(t *testing.T, cfg *rest.Config) []byte {
	t.Helper()
	if len(cfg.CAData) > 0 {
		return cfg.CAData
	}
	ca, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// options of an agent in this process.
func options(source agent.Source, replica string) agent.Options {
	o := agent.DefaultOptions()
	o.Source, o.Replica, o.Version, o.Timing = source, replica, "v1.2.3", tunneltest.Timing()
	o.Interval, o.Lease, o.Proxy = 100*time.Millisecond, 3*time.Second, nil
	return o
}

// running is an agent in this process.
type running struct {
	stop  context.CancelFunc
	ended chan error
}

func run(t *testing.T, o agent.Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel, make(chan error, 1)}
	go func() {
		r.ended <- agent.Run(ctx, o)
		close(r.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	return r
}

// reaches waits until the hub reaches the API server of the cluster by an agent with the credentials that it has.
func (h *hub) reaches() {
	h.t.Helper()
	testenv.Eventually(h.t, "the hub reaches the cluster", testenv.Patience, func() error {
		h.mu.Lock()
		c, reports := h.credentials, len(h.reports)
		h.mu.Unlock()
		if c.Token == "" || reports == 0 {
			return errors.New("nobody has told the hub how")
		}
		return h.get(c, "/api/v1/namespaces/kube-system")
	})
}

func (h *hub) get(c tunnel.Credentials, path string) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: c.TLSServerName}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return h.gateway.Dial(ctx, "oak", tunnel.APIServer)
		},
	}
	request, err := http.NewRequest(http.MethodGet, c.Endpoint+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// keys are how many keys have redeemed, and how often any did.
func (h *hub) once() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.redeemed != 1 {
		return fmt.Errorf("tokens were redeemed %d times", h.redeemed)
	}
	return nil
}

// replicas that are connected.
func (h *hub) replicas() map[string]bool {
	names := map[string]bool{}
	for _, a := range h.gateway.Agents("oak") {
		if a.Spares > 0 {
			names[a.Replica] = true
		}
	}
	return names
}

func (h *hub) awaitReplicas(want int) {
	h.t.Helper()
	testenv.Eventually(h.t, fmt.Sprintf("%d replicas are connected", want), testenv.Patience, func() error {
		if got := h.replicas(); len(got) != want {
			return fmt.Errorf("these are: %v", got)
		}
		return nil
	})
}

// TestTwoReplicas: one enrols, both connect with one certificate, and when the one that has the Lease is lost the other goes on.
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

// TestLostLease: an agent that loses the Lease to another, though it runs, reports no more, and keeps its tunnel; who takes it does.
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
	// The thief renews nothing, and its clock is of no matter: the agent takes the Lease after it has seen it unchanged.
	h.reaches()
	lease := oak.Object(t, "coordination.k8s.io/v1", "Lease", tunnel.Namespace, agent.Name)
	if spec, _ := lease.Object["spec"].(map[string]any); spec["holderIdentity"] != "a" {
		t.Errorf("the Lease is %v", spec)
	}
}

// TestRejoin: with a new token the agents make a new key, and the old certificate is of no use any more.
func TestRejoin(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
	h.reaches()
	oak.Apply(t, h.manifest("two", nil))
	testenv.Eventually(t, "the second token is redeemed with a key of its own", testenv.Patience, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.tokens["two"] == "" || h.tokens["two"] == h.tokens["one"] {
			return fmt.Errorf("by %q, the first by %q", h.tokens["two"], h.tokens["one"])
		}
		return nil
	})
	h.reaches()
	h.awaitReplicas(1)
}

// TestRenewal: a certificate is renewed after a third of its life, with the same key.
func TestRenewal(t *testing.T) {
	h := newHub(t)
	h.life = 10 * time.Second // and a minute of it is over already
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

// TestSmallerProfile: what a manifest gave and the next one does not give is taken away.
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

// TestProxy: the hub is reached through a proxy that demands CONNECT, and through one that ends TLS; neither learns a token.
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

// killer is a proxy before the API server that kills a process at one of its writes: before the write is passed on, or after it was done
// and before the process learns of it.
type killer struct {
	server *httptest.Server

	mu    sync.Mutex
	count int
	at    int // the write; 0: none
	after bool
	kill  func()
	what  string // was killed at
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

// hit counts a write, and kills if it is the one.
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

// process is an agent that can be killed.
func (k *killer) process(t *testing.T, at int, after bool) (exited chan error, out *bytes.Buffer) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.server.Certificate().Raw})
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

// TestKilled kills the agent at each of its writes, of its enrolment and of its removal, before it is done; the last one, after it is. The
// next one goes on where it was: one key redeems the token, and in the end nothing is left.
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

// round has an agent enrol and, as soon as it has, remove itself. It is killed at one of its writes, and another goes on. It says which
// write that was.
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

// TestOthersInNamespace: a namespace that others use stays when the agent goes, and so does one that no manifest made.
func TestOthersInNamespace(t *testing.T) {
	for name, others := range map[string]string{
		"Used":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs, namespace: orrery-system}\n",
		"NotMade": "apiVersion: v1\nkind: Namespace\nmetadata: {name: orrery-system, labels: {agent.orrery.dev/made: null}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			apply(t, h.manifest("one", nil))
			if name == "NotMade" {
				oak.MergePatch(t, "v1", "Namespace", "", tunnel.Namespace, `{"metadata": {"labels": {"agent.orrery.dev/made": null}}}`)
			} else {
				oak.Apply(t, others)
			}
			r := run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
			h.reaches()
			h.leave()
			h.gateway.Recheck(t.Context(), "oak")
			if err := <-r.ended; err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "the rest goes", testenv.Patience, func() error {
				for _, o := range []named{{"v1", "Secret", agent.Name}, {"v1", "ServiceAccount", agent.Name}, {"v1", "ServiceAccount", agent.HubAccount}} {
					if _, err := oak.Find(t.Context(), o.apiVersion, o.kind, tunnel.Namespace, o.name); !apierrors.IsNotFound(err) {
						return fmt.Errorf("%s %s: %w", o.kind, o.name, errors.Join(errors.New("is there"), err))
					}
				}
				return nil
			})
			if ns := oak.Object(t, "v1", "Namespace", "", tunnel.Namespace); ns.GetDeletionTimestamp() != nil || len(ns.GetOwnerReferences()) > 0 {
				t.Error("the namespace is being deleted")
			}
		})
	}
}

// TestOwnRights: an agent that has nothing but its ServiceAccount enrols, and removes everything.
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
	for _, kind := range []string{"Role", "RoleBinding"} {
		if _, err := oak.Find(t.Context(), rbacv1.SchemeGroupVersion.String(), kind, "shop", agent.HubAccount); !apierrors.IsNotFound(err) {
			t.Errorf("the %s in the namespace of the profile: %v", kind, err)
		}
	}
	if ns := oak.Object(t, "v1", "Namespace", "", "shop"); ns.GetDeletionTimestamp() != nil {
		t.Error("the namespace of the workloads is being deleted")
	}
}

// token of a ServiceAccount.
func token(t *testing.T, account string) string {
	t.Helper()
	var token string
	testenv.Eventually(t, "a token", testenv.Patience, func() error {
		request := &clientToken{}
		err := post(t, "/api/v1/namespaces/"+tunnel.Namespace+"/serviceaccounts/"+account+"/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, request)
		token = request.Status.Token
		return err
	})
	return token
}

type clientToken struct {
	Status struct {
		Token string `json:"token"`
	} `json:"status"`
}

func post(t *testing.T, path, body string, into any) error {
	t.Helper()
	return postAs(t, oak.DirectConfig(), path, body, into)
}

func postAs(t *testing.T, cfg *rest.Config, path, body string, into any) error {
	t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	response, err := c.Post(cfg.Host+path, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, into)
}

// check is a question to the API server.
type check struct {
	verb, group, resource, subresource, namespace, name string
	path                                                string
	may                                                 bool
}

// may asks as a ServiceAccount what it may.
func may(t *testing.T, account string, c check) bool {
	t.Helper()
	spec := map[string]any{}
	if c.path != "" {
		spec["nonResourceAttributes"] = map[string]any{"verb": c.verb, "path": c.path}
	} else {
		spec["resourceAttributes"] = map[string]any{
			"verb": c.verb, "group": c.group, "resource": c.resource, "subresource": c.subresource, "namespace": c.namespace, "name": c.name,
		}
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	cfg := oak.DirectConfig()
	as := rest.AnonymousClientConfig(cfg)
	as.BearerToken = token(t, account)
	var answer struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	if err := postAs(t, as, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", string(body), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// TestManifest applies the manifest of each profile to a real API server, and asks it what the hub and the agent may there.
func TestManifest(t *testing.T) {
	h := newHub(t)
	t.Cleanup(func() { oak.Remove(t, "v1", "Namespace", "", "shop") })
	const system = tunnel.Namespace
	own := []check{
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: system, name: agent.HubAccount, may: true},
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: system, name: agent.Name},
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: "kube-system", name: "default"},
		{verb: "get", resource: "secrets", namespace: system, name: agent.Name, may: true},
		{verb: "get", resource: "secrets", namespace: system, name: "another"},
		{verb: "list", resource: "secrets", namespace: system},
		{verb: "create", resource: "secrets", namespace: system},
		{verb: "patch", group: "coordination.k8s.io", resource: "leases", namespace: system, name: agent.Name, may: true},
		{verb: "patch", group: "coordination.k8s.io", resource: "leases", namespace: "kube-system", name: agent.Name},
		{verb: "delete", resource: "namespaces", name: "kube-system"},
		{verb: "patch", resource: "namespaces", name: "kube-system"},
		{verb: "list", resource: "pods", namespace: "shop"},
		{verb: "impersonate", resource: "users"},
		{verb: "create", group: rbacv1.GroupName, resource: "clusterrolebindings"},
		{verb: "delete", group: rbacv1.GroupName, resource: "clusterrolebindings", name: "cluster-admin"},
	}
	read := []check{
		{verb: "list", resource: "pods", may: true},
		{verb: "watch", resource: "nodes", may: true},
		{verb: "list", group: "apps", resource: "deployments", may: true},
		{verb: "list", group: "apiextensions.k8s.io", resource: "customresourcedefinitions", may: true},
		{verb: "get", path: "/version", may: true},
		{verb: "get", path: "/metrics"},
		{verb: "list", resource: "secrets"},
		{verb: "get", resource: "secrets", namespace: "kube-system", name: "any"},
		{verb: "create", resource: "serviceaccounts", subresource: "token", namespace: "kube-system"},
		{verb: "create", resource: "pods", subresource: "exec", namespace: "kube-system"},
		{verb: "get", resource: "nodes", subresource: "proxy"},
		{verb: "delete", resource: "pods", namespace: "kube-system"},
		{verb: "create", resource: "namespaces"},
		{verb: "impersonate", resource: "users"},
		{verb: "list", group: "example.com", resource: "gadgets", may: true}, // by the label
	}
	for name, tc := range map[string]struct {
		agent *clusterv1alpha1.Agent
		hub   []check
	}{
		"All": {nil, []check{{verb: "impersonate", resource: "users", may: true}, {verb: "*", group: "*", resource: "*", may: true}}},
		"Placement": {
			&clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfilePlacement, Namespaces: []string{"shop"}},
			append([]check{
				{verb: "*", group: "*", resource: "*", namespace: "shop", may: true},
				{verb: "list", resource: "secrets", namespace: "shop", may: true},
				{verb: "list", resource: "secrets", namespace: "default"},
			}, read...),
		},
		"Mirror": {
			&clusterv1alpha1.Agent{Profile: clusterv1alpha1.AgentProfileMirror},
			append([]check{
				{verb: "create", resource: "configmaps", namespace: "shop"},
				{verb: "list", resource: "secrets", namespace: "shop"},
			}, read...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			apply(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n"+
				"metadata: {name: gadgets, labels: {rbac.orrery.dev/aggregate-to-mirror: \"true\"}}\n"+
				"rules:\n- {apiGroups: [example.com], resources: [gadgets], verbs: [get, list, watch]}\n")
			t.Cleanup(func() {
				oak.Remove(t, rbacv1.SchemeGroupVersion.String(), "ClusterRole", "", "gadgets")
				oak.Remove(t, "v1", "Namespace", "", "shop") // with the rights that one profile gives there
			})
			text := h.manifest("one", func(o *manifest.Options) { o.Agent, o.Image = tc.agent, "registry.example/agent:1" })
			oak.Apply(t, text)
			oak.Apply(t, text) // again: it changes nothing that may not be
			for account, checks := range map[string][]check{agent.HubAccount: tc.hub, agent.Name: own} {
				for _, c := range checks {
					testenv.Eventually(t, "rights of "+account, testenv.Patience, func() error {
						if got := may(t, account, c); got != c.may {
							return fmt.Errorf("%+v: it may: %t", c, got)
						}
						return nil
					})
				}
			}
			testenv.Eventually(t, "the pods are made", testenv.Patience, func() error {
				pods, err := oak.ListKind(t.Context(), "v1", "Pod", system)
				if err == nil && len(pods) != 2 {
					err = fmt.Errorf("%d pods", len(pods))
				}
				return err
			})
		})
	}
}

// TestRestricted: the pods are such as the strictest of the Pod Security Standards takes.
func TestRestricted(t *testing.T) {
	h := newHub(t)
	t.Cleanup(func() { clean(t) })
	oak.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: orrery-system, labels: {pod-security.kubernetes.io/enforce: restricted}}\n")
	oak.Apply(t, h.manifest("one", func(o *manifest.Options) { o.Image = "registry.example/agent:1" }))
	testenv.Eventually(t, "the pods are made", testenv.Patience, func() error {
		var pods corev1.PodList
		if err := oak.List(t.Context(), &pods, client.InNamespace(tunnel.Namespace)); err != nil {
			return err
		}
		if len(pods.Items) != 2 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
}

// TestKubeconfig: what a kubeconfig may not be is refused by name.
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

// TestHealth: a process serves its probes.
func TestHealth(t *testing.T) {
	h := newHub(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
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

// TestSilent: an agent ends when it has had no connection for too long, so that it is started anew.
func TestSilent(t *testing.T) {
	h := newHub(t)
	apply(t, h.manifest("one", nil))
	o := options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a")
	o.Timing.Exit = time.Second
	r := run(t, o)
	h.reaches()
	h.gateway.Close()
	h.server.CloseClientConnections()
	h.server.Listener.Close()
	if err := <-r.ended; !errors.Is(err, tunnel.ErrSilent) {
		t.Errorf("it ended with %v", err)
	}
}
