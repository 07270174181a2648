package agent_test

import (
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
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/agent"
	"orrery.dev/orrery/internal/tunnel/gateway"
	"orrery.dev/orrery/internal/tunnel/manifest"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

var (
	oak    *testenv.Member // has controllers, so owned objects are deleted with their owner
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

// hub is a hub as agents see it: a real gateway, and a minimal redemption.
type hub struct {
	t       *testing.T
	gateway *gateway.Gateway
	server  *httptest.Server
	key     []byte // public, for tunnel.Seal

	mu          sync.Mutex
	authority   *x509.Certificate
	signer      *ecdsa.PrivateKey
	life        time.Duration        // of certificates
	tokens      map[string]string    // by token: fingerprint of the key that used it; "": unused
	redeemed    int                  // number of redemptions
	refused     int                  // number of refused redemptions
	reports     []tunnel.Credentials // in order of arrival
	renewals    int                  // number of renewed certificates
	credentials tunnel.Credentials   // last ones received
	gone        bool                 // the cluster has left
	onReport    func()               // called for each accepted report
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

// redeem accepts a token once, for the first key that uses it.
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
		h.refused++
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

// behind returns a load balancer that ends TLS and connects to the hub by TLS.
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

// leave makes the cluster leave.
func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
}

func (h *hub) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
}

// manifest returns a manifest with the token.
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

// apply applies a manifest, and removes its objects when the test ends.
func apply(t *testing.T, text string) {
	t.Helper()
	t.Cleanup(func() { clean(t) })
	oak.Apply(t, text)
}

// clean removes everything that a manifest created, and the namespace, and waits until all is gone.
func clean(t *testing.T) {
	t.Helper()
	for _, o := range made() {
		if o.namespace == "" {
			oak.Remove(t, o.apiVersion, o.kind, "", o.name)
		}
	}
	oak.Remove(t, "v1", "Namespace", "", tunnel.Namespace)
	gone(t, append(made(), named{"v1", "Namespace", "", tunnel.Namespace}))
}

type named struct{ apiVersion, kind, namespace, name string }

// made returns everything that a manifest creates, except namespaces and objects in the namespaces
// of a profile.
func made() []named {
	const rbac, in = "rbac.authorization.k8s.io/v1", tunnel.Namespace
	return []named{
		{rbac, "ClusterRoleBinding", "", agent.AllBinding},
		{rbac, "ClusterRoleBinding", "", agent.MirrorRole},
		{rbac, "ClusterRoleBinding", "", agent.MirrorBuiltinRole},
		{rbac, "ClusterRoleBinding", "", agent.Name},
		{rbac, "ClusterRole", "", agent.MirrorRole},
		{rbac, "ClusterRole", "", agent.MirrorBuiltinRole},
		{rbac, "ClusterRole", "", agent.Name},
		{rbac, "Role", in, agent.Name},
		{rbac, "RoleBinding", in, agent.Name},
		{"v1", "Secret", in, agent.Name},
		{"v1", "Secret", in, tunnel.JoinSecret},
		{"v1", "ServiceAccount", in, agent.Name},
		{"v1", "ServiceAccount", in, agent.HubAccount},
		{"coordination.k8s.io/v1", "Lease", in, agent.Name},
		{"apps/v1", "Deployment", in, agent.Name},
		{"policy/v1", "PodDisruptionBudget", in, agent.Name},
	}
}

// left waits until only the namespace of a manifest is left.
func left(t *testing.T) {
	t.Helper()
	gone(t, made())
	if ns := oak.Object(t, "v1", "Namespace", "", tunnel.Namespace); ns.GetDeletionTimestamp() != nil || len(ns.GetOwnerReferences()) > 0 || len(ns.GetLabels()) > 1 {
		t.Errorf("the namespace is not left alone: %v", ns.Object["metadata"])
	}
}

func gone(t *testing.T, objects []named) {
	t.Helper()
	testenv.Eventually(t, "everything that the manifest made is gone", testenv.Patience, func() error {
		for _, o := range objects {
			if _, err := oak.Find(context.Background(), o.apiVersion, o.kind, o.namespace, o.name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s: %w", o.kind, o.name, errors.Join(errors.New("is there"), err))
			}
		}
		return nil
	})
}

// kubeconfig returns a kubeconfig of an administrator, or of the holder of a token. server and ca
// are those of a proxy; if server is "", the cluster's own.
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

// options returns the options of an agent in this process.
func options(source agent.Source, replica string) agent.Options {
	o := agent.DefaultOptions()
	o.Source, o.Replica, o.Version, o.Timing = source, replica, "v1.2.3", tunneltest.Timing()
	o.Interval, o.Lease, o.Proxy = 100*time.Millisecond, 15*time.Second, nil
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

// reaches waits until the hub reaches the API server of the cluster through an agent, with its
// credentials.
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

// once returns an error unless exactly one key has redeemed a token.
func (h *hub) once() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.redeemed != 1 {
		return fmt.Errorf("tokens were redeemed %d times", h.redeemed)
	}
	return nil
}

// replicas returns the connected replicas.
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
