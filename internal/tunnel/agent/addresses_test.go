package agent_test

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/tunnel/agent"
	"orrery.dev/orrery/internal/tunnel/manifest"
)

// TestAddresses: an agent reaches the hub at an IPv6 address, and at a name that a load balancer
// recognizes by SNI only.
func TestAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		listen, host string
		indicated    string // SNI that the balancer gets; RFC 6066: none for addresses
	}{
		"IPv6":       {listen: "[::1]:0", host: "::1"},
		"ServerName": {listen: "127.0.0.1:0", host: "localhost", indicated: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			b := newBalancer(t, h, c.listen, c.host)
			apply(t, h.manifest("one", func(o *manifest.Options) { o.URL, o.CA = b.url, b.ca }))
			run(t, options(agent.Kubeconfig(kubeconfig(t, "", nil, ""), ""), "a"))
			h.reaches()
			b.mu.Lock()
			defer b.mu.Unlock()
			// A redemption, a report, and a spare.
			if len(b.indicated) < 3 || slices.ContainsFunc(b.indicated, func(s string) bool { return s != c.indicated }) {
				t.Errorf("the agent named %q, want %q each time", b.indicated, c.indicated)
			}
		})
	}
}

// balancer ends TLS in front of a hub, for several hosts. A client that does not send the right
// name gets the certificate of another host.
type balancer struct {
	url string
	ca  []byte

	mu        sync.Mutex
	indicated []string // the names in the handshakes, in their order
}

func newBalancer(t *testing.T, h *hub, listen, host string) *balancer {
	t.Helper()
	tcp, err := net.Listen("tcp", listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Skipf("this machine has no IPv6: %v", err)
		}
		t.Fatal(err)
	}
	authority, err := pki.NewAuthority("balancer", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	right, other := pki.Leaf{Name: "right", CommonName: host, Server: true}, pki.Leaf{Name: "other", CommonName: "other", Server: true, DNSNames: []string{"other.example.com"}}
	named := net.ParseIP(host) == nil
	if named {
		right.DNSNames = []string{host}
	} else {
		right.IPs = []string{host}
	}
	with := func(l pki.Leaf) *tls.Config {
		pair, err := authority.Issue(l, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS12}
	}
	forHost, forOthers := with(right), with(other)
	b := &balancer{ca: authority.Cert}
	server := httptest.NewUnstartedServer(h.behind())
	_ = server.Listener.Close() // it gets another
	server.Listener = tcp
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		b.mu.Lock()
		b.indicated = append(b.indicated, hello.ServerName)
		b.mu.Unlock()
		if named && hello.ServerName != host {
			return forOthers, nil
		}
		return forHost, nil
	}}
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	_, port, err := net.SplitHostPort(tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b.url = "https://" + net.JoinHostPort(host, port)
	return b
}
