package gateway_test

import (
	"bytes"
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
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/internal/tunnel"
	"orrery.dev/orrery/internal/tunnel/gateway"
)

// patience is how long a test waits for something that must happen.
const patience = 3 * time.Minute

// quick returns intervals for tests. Those that tests wait for are short; those that a busy machine
// must not exceed are long.
func quick() tunnel.Timing {
	return tunnel.Timing{
		Probe: 50 * time.Millisecond, Silence: 2 * time.Second, Hedge: 50 * time.Millisecond, Patience: 10 * time.Second,
		Handshake: time.Minute, Dial: 10 * time.Second, Heartbeat: 100 * time.Millisecond, Dead: 2 * time.Second,
		FirstRetry: 5 * time.Millisecond, LastRetry: 50 * time.Millisecond, Exit: time.Minute,
	}
}

// slower returns intervals for tests in which a connection must outlive Dead twice.
func slower() tunnel.Timing {
	timing := quick()
	timing.Dead = 5 * time.Second
	return timing
}

// site is a gateway with a network in front of it, and everything that agents need.
type site struct {
	t        testing.TB
	timing   tunnel.Timing
	patience time.Duration
	gateway  *gateway.Gateway
	network  *testenv.Network
	server   *httptest.Server
	changed  chan struct{}

	mu      sync.Mutex
	refused map[string]error // results of Admit that are errors, by cluster
	// Called before Admit returns its result; may be nil.
	judged func()
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteWith(t, quick())
}

func newSiteWith(t testing.TB, timing tunnel.Timing) *site {
	t.Helper()
	s := &site{t: t, timing: timing, patience: patience, changed: make(chan struct{}, 1), refused: map[string]error{}}
	s.gateway = gateway.New(gateway.Options{
		Timing: s.timing,
		Admit: func(_ context.Context, c *x509.Certificate) (string, error) {
			s.mu.Lock()
			err, judged := s.refused[c.Subject.CommonName], s.judged
			s.mu.Unlock()
			if judged != nil {
				judged()
			}
			return c.Subject.CommonName, err
		},
		Changed: func(string) {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		},
	})
	mux := http.NewServeMux()
	mux.Handle(tunnel.Path, s.gateway)
	s.server = httptest.NewUnstartedServer(mux)
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // connections are broken on purpose
	s.server.Config.ReadHeaderTimeout = timing.Handshake  // as the hub's listener
	// An ECDSA key, as the hub creates: the RSA key of httptest makes handshakes ten times as
	// expensive.
	s.server.TLS = &tls.Config{Certificates: []tls.Certificate{identity(t, "hub", time.Now().Add(time.Hour))}}
	s.server.StartTLS()
	s.network = testenv.NewNetwork(t, s.server.Listener.Addr().String(), 0)
	t.Cleanup(func() {
		s.gateway.Close()
		s.server.Close()
	})
	return s
}

func (s *site) refuse(cluster string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[cluster] = err
}

// await waits until so is true, and checks after each change of the gateway.
func (s *site) await(what string, so func() bool) {
	s.t.Helper()
	end := time.After(s.patience)
	for !so() {
		select {
		case <-s.changed:
		// The gateway does not report everything that tests wait for.
		case <-time.After(20 * time.Millisecond):
		case <-end:
			s.t.Fatalf("in vain: %s", what)
		}
	}
}

// spares returns the number of spares of a cluster.
func (s *site) spares(cluster string) int {
	n := 0
	for _, a := range s.gateway.Agents(cluster) {
		n += a.Spares
	}
	return n
}

// identity creates a certificate of an agent or a server.
func identity(t testing.TB, cluster string, ends time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cluster}, NotBefore: time.Unix(0, 0), NotAfter: ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// echo returns a destination that returns its input.
func echo(t testing.TB) func(context.Context) (net.Conn, error) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// agent returns an agent of a cluster, which does not run yet.
func (s *site) agent(cluster string) *tunnel.Agent {
	s.t.Helper()
	id := identity(s.t, cluster, time.Now().Add(time.Hour))
	trusted := x509.NewCertPool()
	trusted.AddCert(s.server.Certificate())
	return &tunnel.Agent{
		URL: "wss://" + s.network.Address() + tunnel.Path, TLS: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS13},
		Identity: func() (tls.Certificate, error) { return id, nil }, Replica: "one", Version: "v1",
		Destinations: map[string]func(context.Context) (net.Conn, error){tunnel.APIServer: echo(s.t)}, Timing: s.timing,
	}
}

// run runs an agent until stop is called. ended receives the result.
func (s *site) run(a *tunnel.Agent) (stop func(), ended <-chan error) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		done <- a.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-gone
	}
	s.t.Cleanup(stop)
	return stop, done
}

// dial dials the cluster, and fails the test on an error.
func (s *site) dial(cluster string) net.Conn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for {
		c, err := s.gateway.Dial(ctx, cluster, tunnel.APIServer)
		if err == nil {
			s.t.Cleanup(func() { _ = c.Close() })
			return c
		}
		if ctx.Err() != nil || !errors.Is(err, gateway.ErrNoAgent) {
			s.t.Fatal(err)
		}
	}
}

// says sends a text and checks that the connection returns it.
func says(t testing.TB, c net.Conn, text string) error {
	t.Helper()
	stop := time.AfterFunc(patience, func() { _ = c.Close() })
	defer stop.Stop()
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	if string(back) != text {
		t.Errorf("it says %q, want %q", back, text)
	}
	return nil
}

// TestDial: data arrives, in both directions at once, and so does the end.
func TestDial(t *testing.T) {
	s := newSite(t)
	s.run(s.agent("oak"))
	c := s.dial("oak")
	sent := make([]byte, 8<<20)
	_, _ = rand.Read(sent)
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 70_001)
			if _, err := c.Write(rest[:n]); err != nil {
				t.Error(err)
				return
			}
			rest = rest[n:]
		}
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Error("what came back is not what was sent")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a closed connection can be read")
	}
	_, err := s.gateway.Dial(t.Context(), "oak", "etcd")
	if err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("a destination that the agent does not know: %v", err)
	}
}

// TestEndReachesTheClient: when the destination ends a connection, the client of the hub reads the
// end.
func TestEndReachesTheClient(t *testing.T) {
	s := newSite(t)
	a := s.agent("oak")
	a.Destinations[tunnel.APIServer] = func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = io.WriteString(there, "bye")
			_ = there.Close()
		}()
		return here, nil
	}
	s.run(a)
	got, err := io.ReadAll(s.dial("oak"))
	if err != nil || string(got) != "bye" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestIdentity: only the key of an admitted certificate gives access.
func TestIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*site, *tunnel.Agent)
		want   string // of the refusal
	}{
		"Expired": {func(s *site, a *tunnel.Agent) {
			id := identity(s.t, "oak", time.Now().Add(-time.Minute))
			a.Identity = func() (tls.Certificate, error) { return id, nil }
		}, "expired"},
		"StolenCertificate": {func(s *site, a *tunnel.Agent) {
			id, other := identity(s.t, "oak", time.Now().Add(time.Hour)), identity(s.t, "oak", time.Now().Add(time.Hour))
			id.PrivateKey = other.PrivateKey
			a.Identity = func() (tls.Certificate, error) { return id, nil }
		}, "not signed with the key"},
		"NotAdmitted": {func(s *site, _ *tunnel.Agent) { s.refuse("oak", errors.New("its certificate was revoked")) }, "revoked"},
		"NoReplica":   {func(_ *site, a *tunnel.Agent) { a.Replica = "" }, "replica"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			a := s.agent("oak")
			tc.change(s, a)
			ws, welcome := s.meet(t, a)
			if !strings.Contains(welcome.Refused, tc.want) {
				t.Errorf("the hub says %+v", welcome)
			}
			if _, _, err := ws.ReadMessage(); err == nil {
				t.Error("the connection stays")
			}
			if s.spares("oak") != 0 {
				t.Error("it is a spare")
			}
		})
	}
}

// meet exchanges the first messages with an agent's certificate.
func (s *site) meet(t testing.TB, a *tunnel.Agent) (*websocket.Conn, tunnel.Welcome) {
	t.Helper()
	d := websocket.Dialer{TLSClientConfig: a.TLS, Subprotocols: []string{tunnel.Protocol}}
	ws, resp, err := d.DialContext(t.Context(), a.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	t.Cleanup(func() { _ = ws.Close() })
	_ = ws.SetReadDeadline(time.Now().Add(patience))
	var c tunnel.Challenge
	if err := ws.ReadJSON(&c); err != nil {
		t.Fatal(err)
	}
	id, err := a.Identity()
	if err != nil {
		t.Fatal(err)
	}
	key, _ := id.PrivateKey.(*ecdsa.PrivateKey)
	signature, err := tunnel.Prove(key, c.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.WriteJSON(tunnel.Hello{Certificate: id.Certificate[0], Signature: signature, Replica: a.Replica, Version: a.Version}); err != nil {
		t.Fatal(err)
	}
	var w tunnel.Welcome
	if err := ws.ReadJSON(&w); err != nil {
		t.Fatal(err)
	}
	return ws, w
}

// TestReplayedProof: a signature is valid for one connection.
func TestReplayedProof(t *testing.T) {
	s := newSite(t)
	a := s.agent("oak")
	id, _ := a.Identity()
	key, _ := id.PrivateKey.(*ecdsa.PrivateKey)
	old, err := tunnel.Prove(key, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	d := websocket.Dialer{TLSClientConfig: a.TLS, Subprotocols: []string{tunnel.Protocol}}
	ws, resp, err := d.DialContext(t.Context(), a.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	t.Cleanup(func() { _ = ws.Close() })
	var w tunnel.Welcome
	err = errors.Join(ws.ReadJSON(&tunnel.Challenge{}), ws.WriteJSON(tunnel.Hello{Certificate: id.Certificate[0], Signature: old, Replica: "one"}), ws.ReadJSON(&w))
	if err != nil || w.Refused == "" {
		t.Errorf("%+v, %v", w, err)
	}
}

// TestGone: an agent of a cluster that has left ends, and only then.
func TestGone(t *testing.T) {
	s := newSite(t)
	s.refuse("oak", errors.New("nobody knows this cluster"))
	_, ended := s.run(s.agent("oak"))
	s.await("agents are refused", func() bool { return s.network.Count() > 3 })
	select {
	case err := <-ended:
		t.Fatalf("an unknown cluster's agent ended: %v", err)
	default:
	}
	s.refuse("oak", gateway.ErrGone)
	select {
	case err := <-ended:
		if !errors.Is(err, tunnel.ErrGone) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("the agent goes on")
	}
}

// TestRevoked: open connections end when the agent is no longer admitted; those of other clusters
// stay.
func TestRevoked(t *testing.T) {
	timing := quick()
	timing.Dead = patience // no connection ends by itself
	s := newSiteWith(t, timing)
	s.run(s.agent("oak"))
	s.run(s.agent("pine"))
	oak, pine := s.dial("oak"), s.dial("pine")
	s.refuse("oak", errors.New("revoked"))
	s.gateway.Recheck(t.Context(), "oak")
	if err := says(t, oak, "hello"); err == nil {
		t.Error("an open connection outlives the revocation")
	}
	s.await("no spare is left", func() bool { return s.spares("oak") == 0 })
	s.gateway.Recheck(t.Context(), "pine")
	if err := says(t, pine, "hello"); err != nil {
		t.Error(err)
	}
}

// TestRevokedMeanwhile: an agent that is revoked after Admit, and before its connection is
// registered, is refused.
func TestRevokedMeanwhile(t *testing.T) {
	s := newSite(t)
	var once sync.Once
	s.judged = func() {
		once.Do(func() {
			s.refuse("oak", errors.New("revoked"))
			s.gateway.Recheck(t.Context(), "oak")
		})
	}
	if _, welcome := s.meet(t, s.agent("oak")); !strings.Contains(welcome.Refused, "revoked") {
		t.Errorf("the hub says %+v", welcome)
	}
	s.await("nothing of it is left", func() bool { return len(s.gateway.Clusters()) == 0 })
}

// TestCertificateEnds: a connection does not outlive the certificate of its agent.
func TestCertificateEnds(t *testing.T) {
	s := newSite(t)
	a := s.agent("oak")
	ended := identity(t, "oak", time.Now().Add(-time.Minute))
	var dialled atomic.Bool
	a.Identity = func() (tls.Certificate, error) {
		if dialled.Load() {
			return ended, nil
		}
		return identity(t, "oak", time.Now().Add(3*time.Second)), nil
	}
	s.run(a)
	c := s.dial("oak")
	dialled.Store(true)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("bytes that nobody sent")
	}
	s.await("no spare is left", func() bool { return s.spares("oak") == 0 })
}

// TestSlowReader: a side that reads slowly keeps its connection, for any length of time.
func TestSlowReader(t *testing.T) {
	s := newSiteWith(t, slower())
	a := s.agent("oak")
	read := make(chan struct{})
	const size = 16 << 20 // more than all buffers on the way hold
	took := make(chan int64, 1)
	a.Destinations[tunnel.APIServer] = func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			go func() { _, _ = there.Write(make([]byte, size)) }()
			<-read
			n, _ := io.CopyN(io.Discard, there, size)
			took <- n
		}()
		return here, nil
	}
	s.run(a)
	c := s.dial("oak")
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		wrote <- err
	}()
	idle := time.NewTimer(2 * s.timing.Dead) // the test is about this time
	<-idle.C
	close(read)
	if n, err := io.CopyN(io.Discard, c, size); err != nil {
		t.Errorf("after %d bytes: %v", n, err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if n := <-took; n != size {
		t.Errorf("%d bytes arrived", n)
	}
}

// TestIdle: a connection without data stays while both sides live.
func TestIdle(t *testing.T) {
	s := newSiteWith(t, slower())
	s.run(s.agent("oak"))
	c := s.dial("oak")
	_ = c.SetReadDeadline(time.Now().Add(2 * s.timing.Dead))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an idle connection ended: %v", err)
	}
}

// TestNobody: without an agent a dial waits for one, and then fails.
func TestNobody(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.gateway.Dial(ctx, "oak", tunnel.APIServer); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dialled nobody: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		c, err := s.gateway.Dial(t.Context(), "oak", tunnel.APIServer)
		if err == nil {
			err = c.Close()
		}
		got <- err
	}()
	s.run(s.agent("oak"))
	if err := <-got; err != nil {
		t.Errorf("a dial that began before the agent came: %v", err)
	}
}

// TestSwallowed: if packets are lost silently, a dial on such a connection tries the next one, and
// both sides open new ones.
func TestSwallowed(t *testing.T) {
	t.Run("Few", func(t *testing.T) {
		s := newSite(t)
		s.run(s.agent("oak"))
		c := s.dial("oak")
		s.await("two spares are there", func() bool { return s.spares("oak") >= 2 })
		s.network.Swallow()
		if err := says(t, s.dial("oak"), "hello"); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("bytes that nobody sent")
		}
		s.await("two spares are there again", func() bool { return s.spares("oak") >= 2 })
	})
	// More spares are lost silently than one dial may try: the dial then tries a spare that
	// arrives.
	t.Run("Many", func(t *testing.T) {
		timing := quick()
		timing.Silence, timing.Hedge, timing.Patience = 4*time.Second, 10*time.Millisecond, time.Hour
		timing.Dead = patience // the new connection does not end by itself
		s := newSiteWith(t, timing)
		// One agent keeps that many spares only if many are used within a second. Each agent keeps two.
		for _, replica := range []string{"one", "two", "three", "four", "five"} {
			a := s.agent("oak")
			a.Replica = replica
			s.run(a)
		}
		s.await("more spares are there than one dial takes", func() bool { return s.spares("oak") > 8 })
		s.network.Swallow()
		if err := says(t, s.dial("oak"), "hello"); err != nil {
			t.Error(err)
		}
	})
}

// TestDark: an agent whose attempts hang tries others meanwhile, and ends when its ctx ends.
func TestDark(t *testing.T) {
	timing := quick()
	timing.Silence, timing.Handshake = time.Second, time.Hour
	s := newSiteWith(t, timing)
	s.network.Dark(true)
	stop, _ := s.run(s.agent("oak"))
	s.await("connections hang", func() bool { return s.network.Count() >= 2 })
	s.network.Dark(false)
	if err := says(t, s.dial("oak"), "hello"); err != nil {
		t.Error(err)
	}
	stop() // ends attempts that still hang
}

// TestResets: after each reset the cluster can be dialled, and nothing of the earlier connections
// is left.
func TestResets(t *testing.T) {
	s := newSite(t)
	a := s.agent("oak")
	before := goroutines()
	stop, _ := s.run(a)
	resets := 100
	if testing.Short() {
		resets = 10
	}
	for range resets {
		c := s.dial("oak")
		s.network.Reset()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("bytes that nobody sent")
		}
		_ = c.Close()
	}
	if err := says(t, s.dial("oak"), "hello"); err != nil {
		t.Error(err)
	}
	stop()
	s.network.Reset()
	s.await("nothing is left", func() bool { return len(s.gateway.Agents("oak")) == 0 && goroutines() <= before })
}

// goroutines counts the goroutines of the tunnel, and those that it started, except the caller's.
// Others, such as those of idle HTTP connections, do not count.
func goroutines() int {
	stacks := make([]byte, 1<<20)
	for {
		n := runtime.Stack(stacks, true)
		if n < len(stacks) {
			stacks = stacks[:n]
			break
		}
		stacks = make([]byte, 2*len(stacks))
	}
	count := 0
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "orrery.dev/orrery/internal/tunnel") {
			count++
		}
	}
	return count - 1
}

// TestManyAtOnce: an agent keeps as many spares as are used at once, up to the maximum.
func TestManyAtOnce(t *testing.T) {
	s := newSite(t)
	s.run(s.agent("oak"))
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			if err := says(t, s.dial("oak"), "hello"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s.await("more spares are kept after many were taken", func() bool { return s.spares("oak") > 4 })
	if n := s.spares("oak"); n > tunnel.MaxSpares {
		t.Errorf("%d spares", n)
	}
}

// attacks are actions for which an admitted agent loses its connection.
var attacks = map[string]func(*websocket.Conn) error{
	"Garbage":   func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.TextMessage, []byte("{")) },
	"Bytes":     func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.BinaryMessage, []byte("hello")) },
	"NoWord":    func(ws *websocket.Conn) error { return ws.WriteJSON(tunnel.Word{}) },
	"UnaskedOK": func(ws *websocket.Conn) error { return ws.WriteJSON(tunnel.Word{OK: true}) },
	"LongWord": func(ws *websocket.Conn) error {
		return ws.WriteJSON(tunnel.Word{Refused: strings.Repeat("x", tunnel.MaxWord)})
	},
	"DialsTheHub": func(ws *websocket.Conn) error { return ws.WriteJSON(tunnel.Word{Dial: tunnel.APIServer}) },
	"Flood": func(ws *websocket.Conn) error {
		for range 10_000 {
			if err := ws.WriteJSON(tunnel.Word{Probe: 1}); err != nil {
				return nil // the hub closed the connection, as it should
			}
		}
		return nil
	},
}

// attacked lets an agent attack, and waits for the end of its connection.
func (s *site) attacked(t testing.TB, cluster string, attack func(*websocket.Conn) error) {
	t.Helper()
	ws, welcome := s.meet(t, s.agent(cluster))
	if welcome.Refused != "" {
		t.Fatal(welcome.Refused)
	}
	if err := attack(ws); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				t.Error("the connection stays")
			}
			return
		}
	}
}

// TestHostile: an agent that violates the protocol loses its connection, and others are not
// affected.
func TestHostile(t *testing.T) {
	timing := quick()
	timing.Dead = patience // the good connection does not end by itself
	s := newSiteWith(t, timing)
	s.run(s.agent("oak"))
	good := s.dial("oak")
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			s.attacked(t, "pine", attack)
		})
	}
	t.Run("NeverReads", func(t *testing.T) {
		// The spares work until they are used.
		bad := s.agent("pine")
		_, welcome := s.meet(t, bad)
		if welcome.Refused != "" {
			t.Fatal(welcome.Refused)
		}
		if _, err := s.gateway.Dial(t.Context(), "pine", tunnel.APIServer); err == nil {
			t.Error("one that says nothing was dialled")
		}
		s.await("it is forgotten", func() bool { return len(s.gateway.Agents("pine")) == 0 })
	})
	t.Run("ManyAgents", func(t *testing.T) {
		timing := timing
		timing.Silence = patience // agents that say nothing stay
		s := newSiteWith(t, timing)
		refused := 0
		for i := range 20 {
			bad := s.agent("pine")
			bad.Replica = strings.Repeat("x", i+1)
			if _, welcome := s.meet(t, bad); welcome.Refused != "" {
				refused++
			}
		}
		if refused == 0 {
			t.Error("a cluster has any number of agents")
		}
	})
	if err := says(t, good, "hello"); err != nil {
		t.Error(err)
	}
}

// silentSocket opens a WebSocket to the tunnel from an address of this machine, on which the client
// sends nothing.
func (s *site) silentSocket(from string) *websocket.Conn {
	s.t.Helper()
	trusted := x509.NewCertPool()
	trusted.AddCert(s.server.Certificate())
	dialer := &websocket.Dialer{
		Subprotocols: []string{tunnel.Protocol}, TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS13},
		NetDialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext,
	}
	ws, _, err := dialer.DialContext(s.t.Context(), "wss://"+s.server.Listener.Addr().String()+tunnel.Path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// TestOneAddressKeepsNoAgentOut: an address that opens more connections than the hub keeps of
// clients that have not proven who they are loses its own, the oldest first. Agents that connect
// from elsewhere, agents that are connected, and unproven connections of other addresses stay.
func TestOneAddressKeepsNoAgentOut(t *testing.T) {
	timing := quick()
	timing.Handshake, timing.Dead = 2*patience, patience // no connection ends by itself
	s := newSiteWith(t, timing)
	s.run(s.agent("oak"))
	s.await("the first agent is connected", func() bool { return s.spares("oak") > 0 })
	connected := s.dial("oak")
	other := s.silentSocket("127.0.0.3")
	const most, beyond = 256, 44
	before := counted(t, "orrery_tunnel_refused_total", "Busy")
	var hostile []*websocket.Conn
	for range most + beyond {
		hostile = append(hostile, s.silentSocket("127.0.0.2"))
	}
	s.run(s.agent("pine"))
	s.await("an agent connects meanwhile", func() bool { return s.spares("pine") > 0 })
	for name, c := range map[string]net.Conn{"pine": s.dial("pine"), "oak": connected} {
		if err := says(t, c, "hello"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i, ws := range hostile[:beyond] {
		_ = ws.SetReadDeadline(time.Now().Add(patience))
		var err error
		for err == nil { // the challenge comes first
			_, _, err = ws.ReadMessage()
		}
		if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
			t.Fatalf("connection %d of %d is open", i, most+beyond)
		}
	}
	if n := counted(t, "orrery_tunnel_refused_total", "Busy") - before; n < beyond {
		t.Errorf("%v closed connections are counted, want at least %d", n, beyond)
	}
	for name, ws := range map[string]*websocket.Conn{"TheOtherAddress": other, "TheNewestOfTheAddress": hostile[len(hostile)-1]} {
		_ = ws.SetReadDeadline(time.Now().Add(patience))
		if _, _, err := ws.ReadMessage(); err != nil {
			t.Errorf("%s: no challenge: %v", name, err)
		}
		if err := ws.WriteJSON(tunnel.Hello{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var answer tunnel.Welcome
		if err := ws.ReadJSON(&answer); err != nil || answer.Refused == "" {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
}
