package enrollment

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/listener"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/tunneltest"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Println(prefix, args) }, funcr.Options{Verbosity: 1}))
	testenv.Main(m, 1)
}

// site is a hub with the enrollment of agents, on its own listener.
type site struct {
	t      testing.TB
	hub    client.Client
	server *served

	mu      sync.Mutex
	now     time.Duration // by which the hub's clock is ahead
	offers  []offered
	refused error // result of Offer
	changes client.Client
	retries clock.WithTicker // nil: the real one
	// bodyTime is how long a body may take to arrive.
	bodyTime time.Duration
}

// offered is a call of Options.Offer.
type offered struct {
	cluster     string
	uid         types.UID
	credentials tunnel.Credentials
	redeemed    bool
}

// served is one process of the hub.
type served struct {
	*Enrollment

	address string
	roots   *x509.CertPool
	stop    func()
}

func newSite(t testing.TB) *site {
	t.Helper()
	cfg := testenv.Config(0)
	if err := testenv.InstallCRDs(cfg); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	hub, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, hub: hub, bodyTime: testenv.Patience}
	t.Cleanup(func() { // there is no garbage collector here
		ctx := context.WithoutCancel(t.Context())
		err := errors.Join(
			hub.DeleteAllOf(ctx, &clusterv1alpha1.Cluster{}),
			hub.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(namespace)),
			hub.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(namespace)),
		)
		if err != nil {
			t.Error(err)
		}
	})
	s.start()
	t.Cleanup(func() { s.server.stop() })
	return s
}

// start starts a process of the hub, which admits agents when start returns.
func (s *site) start() {
	t := s.t
	t.Helper()
	mgr, err := ctrl.NewManager(testenv.Config(0), ctrl.Options{Scheme: s.hub.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca, err := pki.NewAuthority("server", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Leaf{Name: "public", CommonName: "public", Server: true, IPs: []string{"127.0.0.1"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, caFile := filepath.Join(dir, "public.pem"), filepath.Join(dir, "ca.crt")
	if err := errors.Join(os.WriteFile(pair, slices.Concat(leaf.Cert, leaf.Key), 0o600), os.WriteFile(caFile, ca.Cert, 0o600)); err != nil {
		t.Fatal(err)
	}
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	public, err := listener.New(listener.Options{}, listener.Serving{Address: tcp.Addr().String(), CertFile: pair, KeyFile: pair, CAFile: caFile}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	e, err := Add(mgr, Options{
		URL: public.URL(), Authorities: public.Authorities, Timing: tunneltest.Timing(), bodyTime: s.bodyTime, retries: s.retries,
		now: func() time.Time { return time.Now().Add(s.ahead()) },
		Offer: func(_ context.Context, cluster string, uid types.UID, c tunnel.Credentials, redeemed bool) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refused != nil {
				return s.refused
			}
			s.offers = append(s.offers, offered{cluster, uid, c, redeemed})
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.changes != nil {
		e.hub = s.changes
	}
	for path, h := range e.Routes() {
		public.Handle(path, h)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		if err := public.Serve(ctx, tcp); err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	s.server = &served{Enrollment: e, address: tcp.Addr().String(), roots: roots, stop: sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})}
	s.eventually("the hub vouches for agents", func() bool { return e.keeper.Load() != nil })
}

func (s *site) ahead() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// later advances the hub's clock by d.
func (s *site) later(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += d
}

func (s *site) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = err
}

// takeOffers returns the calls of Offer since its previous call.
func (s *site) takeOffers() []offered {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.offers
	s.offers = nil
	return all
}

func (s *site) eventually(what string, so func() bool) {
	s.t.Helper()
	testenv.Eventually(s.t, what, testenv.Patience, func() error {
		if !so() {
			return errors.New("not yet")
		}
		return nil
	})
}

// cluster creates a Cluster for an agent.
func (s *site) cluster(name string) *clusterv1alpha1.Cluster {
	s.t.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
	if err := s.hub.Create(s.t.Context(), c); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// joined sets the fields of a Cluster that the hub sets when it has reached the cluster.
func (s *site) joined(c *clusterv1alpha1.Cluster) {
	s.t.Helper()
	c.Spec.APIEndpoint, c.Spec.SecretRef = "https://10.0.0.1", clusterv1alpha1.SecretReference{Namespace: namespace, Name: c.Name}
	if err := s.hub.Update(s.t.Context(), c); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) remove(o client.Object) {
	s.t.Helper()
	if err := s.hub.Delete(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
}

// token creates a token of a join. The command line's clock may be ahead.
func (s *site) token(cluster string, ahead ...time.Duration) string {
	s.t.Helper()
	token, expires, err := NewToken(s.t.Context(), s.hub, cluster)
	if err != nil {
		s.t.Fatal(err)
	}
	if left := time.Until(expires); left > tokenLife || left < tokenLife-time.Minute {
		s.t.Errorf("the token ends in %s", left)
	}
	for _, d := range ahead {
		err := write(s.t.Context(), s.hub, s.hub, cluster+joinSuffix, func(j *corev1.Secret) (bool, error) {
			j.Data[joinEnds] = []byte(written(expires.Add(d)))
			return true, nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return token
}

// replace creates a token, and revokes the key of the cluster's agents.
func (s *site) replace(cluster string) string {
	s.t.Helper()
	token, _, err := Replace(s.t.Context(), s.hub, cluster)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// agent is the state of an agent.
type agent struct {
	t           testing.TB
	cluster     string
	address     string // of the hub
	roots       *x509.CertPool
	key         *ecdsa.PrivateKey
	sealing     []byte
	certificate []byte
	credentials tunnel.Credentials
}

func (s *site) agent(cluster string) *agent {
	s.t.Helper()
	_, _, sealing, err := Published(s.t.Context(), s.hub)
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	return &agent{
		t: s.t, cluster: cluster, address: s.server.address, roots: s.server.roots, key: key, sealing: sealing,
		credentials: tunnel.Credentials{Endpoint: "https://10.0.0.1", CA: []byte("ca"), Token: "token of the service account", Expires: time.Now().Add(time.Hour).Truncate(time.Second)},
	}
}

func (a *agent) request() []byte {
	a.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *agent) seal(cluster string, value any) []byte {
	a.t.Helper()
	sealed, err := tunnel.Seal(a.sealing, cluster, value)
	if err != nil {
		a.t.Fatal(err)
	}
	return sealed
}

// redemption returns the body that the agent posts.
func (a *agent) redemption(token string) []byte {
	a.t.Helper()
	body, err := json.Marshal(tunnel.Redemption{
		Cluster: a.cluster, Request: a.request(), Sealed: a.seal(a.cluster, tunnel.Proof{Token: token, Credentials: a.credentials}),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return body
}

func (a *agent) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.roots}, DisableKeepAlives: true}}
}

func (a *agent) post(body io.Reader) (int, tunnel.Receipt) {
	a.t.Helper()
	request, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, "https://"+a.address+tunnel.RedeemPath, body)
	if err != nil {
		a.t.Fatal(err)
	}
	response, err := a.client().Do(request)
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	var receipt tunnel.Receipt
	if err := json.NewDecoder(response.Body).Decode(&receipt); err != nil {
		a.t.Fatal(err)
	}
	return response.StatusCode, receipt
}

// redeem redeems a token, and fails the test on an error.
func (a *agent) redeem(token string) {
	a.t.Helper()
	status, receipt := a.post(bytes.NewReader(a.redemption(token)))
	if status != http.StatusOK || receipt.Refused != "" {
		a.t.Fatalf("%d, %+v", status, receipt)
	}
	a.certificate = receipt.Certificate
}

// redeemRefused fails the test unless the redemption is refused.
func (a *agent) redeemRefused(token, want string) {
	a.t.Helper()
	status, receipt := a.post(bytes.NewReader(a.redemption(token)))
	if status != http.StatusForbidden || !strings.Contains(receipt.Refused, want) || receipt.Certificate != nil || receipt.Gone {
		a.t.Errorf("%d, %+v, want a refusal with %q", status, receipt, want)
	}
}

// introduce opens a WebSocket and authenticates the agent.
func (a *agent) introduce(path string) (*websocket.Conn, tunnel.Welcome) {
	a.t.Helper()
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: a.roots}, Subprotocols: []string{tunnel.Protocol}}
	ws, response, err := dialer.DialContext(a.t.Context(), "wss://"+a.address+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	_ = response.Body.Close()
	a.t.Cleanup(func() { _ = ws.Close() })
	_ = ws.SetReadDeadline(time.Now().Add(testenv.Patience))
	var challenge tunnel.Challenge
	if err := ws.ReadJSON(&challenge); err != nil {
		a.t.Fatal(err)
	}
	signature, err := tunnel.Prove(a.key, challenge.Nonce)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := ws.WriteJSON(tunnel.Hello{Certificate: a.certificate, Signature: signature, Replica: "one", Version: "v1"}); err != nil {
		a.t.Fatal(err)
	}
	var welcome tunnel.Welcome
	if err := ws.ReadJSON(&welcome); err != nil {
		a.t.Fatal(err)
	}
	return ws, welcome
}

// welcome returns the hub's answer to the agent.
func (a *agent) welcome() tunnel.Welcome {
	a.t.Helper()
	ws, welcome := a.introduce(tunnel.Path)
	_ = ws.Close()
	return welcome
}

// refused waits until the hub refuses the agent with this message. The hub's caches may need a
// moment.
func (a *agent) refused(want string) {
	a.t.Helper()
	var w tunnel.Welcome
	testenv.Eventually(a.t, "the agent is refused", testenv.Patience, func() error {
		if w = a.welcome(); w == (tunnel.Welcome{}) {
			return errors.New("it is let in")
		}
		return nil
	})
	if w.Gone || !strings.Contains(w.Refused, want) {
		a.t.Errorf("the hub says %+v, want a refusal with %q", w, want)
	}
}

func (a *agent) report(r tunnel.Report) tunnel.Receipt {
	a.t.Helper()
	ws, welcome := a.introduce(tunnel.ReportPath)
	defer ws.Close()
	if welcome != (tunnel.Welcome{}) {
		a.t.Fatalf("%+v", welcome)
	}
	var receipt tunnel.Receipt
	if err := errors.Join(ws.WriteJSON(r), ws.ReadJSON(&receipt)); err != nil {
		a.t.Fatal(err)
	}
	return receipt
}

// run keeps spares of the agent until the test ends; ended gets the result. Destinations return
// their input.
func (a *agent) run() (ended <-chan error) {
	a.t.Helper()
	identity := tls.Certificate{Certificate: [][]byte{a.certificate}, PrivateKey: a.key}
	run := &tunnel.Agent{
		URL: "wss://" + a.address + tunnel.Path, TLS: &tls.Config{RootCAs: a.roots}, Replica: "one", Version: "v1", Timing: tunneltest.Timing(),
		Identity: func() (tls.Certificate, error) { return identity, nil },
		Destinations: map[string]func(context.Context) (net.Conn, error){tunnel.APIServer: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(there, there) }()
			return here, nil
		}},
	}
	ctx, cancel := context.WithCancel(a.t.Context())
	done, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		done <- run.Run(ctx)
	}()
	a.t.Cleanup(func() { cancel(); <-gone })
	return done
}

// dial dials the agent's cluster, and returns a connection that returns its input.
func (s *site) dial(cluster string) net.Conn {
	s.t.Helper()
	var c net.Conn
	s.eventually("cluster "+cluster+" can be dialled", func() (ok bool) {
		var err error
		c, err = s.server.Gateway().Dial(s.t.Context(), cluster, tunnel.APIServer)
		return err == nil
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// echoes returns nil if the connection returns the text.
func echoes(c net.Conn, text string) error {
	if err := c.SetDeadline(time.Now().Add(testenv.Patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	if string(back) != text {
		return fmt.Errorf("it says %q", back)
	}
	return nil
}
