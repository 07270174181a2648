// Package tunneltest gives tests a real hub gateway and real agents. Only authentication is
// simplified: the common name of a certificate is the name of the cluster, and every agent is
// admitted.
package tunneltest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/gateway"
)

// Timing returns the intervals and time limits of the tunnel for tests. Those for which tests wait
// are short. Those that must not be exceeded on a busy machine are long.
func Timing() tunnel.Timing {
	return tunnel.Timing{
		Probe: 50 * time.Millisecond, Silence: 2 * time.Second, Hedge: 50 * time.Millisecond, Patience: time.Second,
		Handshake: 10 * time.Second, Dial: 10 * time.Second, Heartbeat: 100 * time.Millisecond, Dead: 2 * time.Second,
		FirstRetry: 5 * time.Millisecond, LastRetry: 50 * time.Millisecond, Exit: time.Minute,
	}
}

// Site is a gateway of a hub with its own HTTPS server, for tests. It serves only tunnel.Path, so
// agents cannot send reports.
type Site struct {
	Gateway *gateway.Gateway

	t      testing.TB
	server *httptest.Server

	mu      sync.Mutex
	changed func(cluster string)
}

// New starts a Site, which ends with the test.
func New(tb testing.TB) *Site {
	tb.Helper()
	s := &Site{t: tb, changed: func(string) {}}
	s.Gateway = gateway.New(gateway.Options{
		Timing: Timing(),
		Admit:  func(_ context.Context, c *x509.Certificate) (string, error) { return c.Subject.CommonName, nil },
		Changed: func(cluster string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed(cluster)
		},
	})
	mux := http.NewServeMux()
	mux.Handle(tunnel.Path, s.Gateway)
	s.server = httptest.NewUnstartedServer(mux)
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // connections are broken on purpose
	s.server.StartTLS()
	tb.Cleanup(func() {
		s.Gateway.Close()
		s.server.Close()
	})
	return s
}

// OnChange registers f, which is called with the name of a cluster when its agents change. It
// replaces the earlier function. Calls of f do not overlap; f must not call OnChange.
func (s *Site) OnChange(f func(cluster string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = f
}

// Agent is a running agent of a Site. Its methods disturb its connections to the Site.
type Agent struct {
	// Stop ends the agent and waits for its end. It may be called several times.
	Stop func()

	mu    sync.Mutex
	to    string
	lines map[*line]bool
	lost  bool
}

// Run starts an agent of a cluster with this replica name. It connects the hub to address
// (host:port) as the API server. The agent runs in the background until the test ends or Stop is
// called. If Run fails, it ends the test, so only the goroutine of the test may call it. If the
// agent fails later, Stop marks the test as failed.
func (s *Site) Run(cluster, replica, address string) *Agent {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cluster}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	identity := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	roots := x509.NewCertPool()
	roots.AddCert(s.server.Certificate())
	a := &Agent{to: address, lines: map[*line]bool{}}
	run := &tunnel.Agent{
		URL: "wss://" + strings.TrimPrefix(s.server.URL, "https://") + tunnel.Path, TLS: &tls.Config{RootCAs: roots},
		NetDial: a.dial, Identity: func() (tls.Certificate, error) { return identity, nil },
		Replica: replica, Version: "v1.2.3", Timing: Timing(),
		Destinations: map[string]func(context.Context) (net.Conn, error){
			tunnel.APIServer: func(ctx context.Context) (net.Conn, error) {
				a.mu.Lock()
				to := a.to
				a.mu.Unlock()
				return new(net.Dialer).DialContext(ctx, "tcp", to)
			},
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run.Run(ctx) }()
	a.Stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			s.t.Errorf("the agent ended: %v", err)
		}
	})
	s.t.Cleanup(a.Stop)
	return a
}

// Lead makes the agent connect the hub to another address (host:port) from now on, as the API
// server. Open connections stay.
func (a *Agent) Lead(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.to = address
}

// Swallow drops all data between the agent and the hub without closing connections if yes is true;
// new connections of the agent do not succeed. After Swallow(false), new connections work again.
func (a *Agent) Swallow(yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost = yes
	for l := range a.lines {
		if yes {
			l.once.Do(func() { close(l.lost) })
		}
	}
}

// Reset closes all present connections between the agent and the hub at once. The agent
// connects again.
func (a *Agent) Reset() {
	a.mu.Lock()
	lines := a.lines
	a.lines = map[*line]bool{}
	a.mu.Unlock()
	for l := range lines {
		_ = l.Conn.Close()
	}
}

// dial connects to the hub, for tunnel.Agent. While Swallow(true) is in force, it blocks until ctx
// ends.
func (a *Agent) dial(ctx context.Context, network, address string) (net.Conn, error) {
	a.mu.Lock()
	lost := a.lost
	a.mu.Unlock()
	if lost {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: conn, of: a, lost: make(chan struct{}), closed: make(chan struct{})}
	a.mu.Lock()
	a.lines[l] = true
	a.mu.Unlock()
	return l, nil
}

// line is a connection of an agent to the hub that can drop all data.
type line struct {
	net.Conn

	of     *Agent
	lost   chan struct{} // closed when no data passes any more
	closed chan struct{}
	once   sync.Once
	ending sync.Once
}

// Read implements net.Conn. If the line drops data, Read blocks until the line is closed.
func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	select {
	case <-l.lost:
		<-l.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

// Write implements net.Conn. If the line drops data, Write discards p.
func (l *line) Write(p []byte) (int, error) {
	select {
	case <-l.lost:
		return len(p), nil
	default:
		return l.Conn.Write(p)
	}
}

// Close implements net.Conn. If the line drops data, the hub sees the end of the connection only 10
// s later.
func (l *line) Close() error {
	l.ending.Do(func() { close(l.closed) })
	l.of.mu.Lock()
	delete(l.of.lines, l)
	l.of.mu.Unlock()
	select {
	case <-l.lost:
		time.AfterFunc(10*time.Second, func() { _ = l.Conn.Close() }) // close it in the end
		return nil
	default:
		return l.Conn.Close()
	}
}
