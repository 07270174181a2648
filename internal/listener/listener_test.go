package listener

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/slots"
	"orrery.dev/orrery/internal/testenv"
)

// site is a listener with a certificate of an authority.
type site struct {
	t        *testing.T
	ca       pki.KeyPair
	file     string // certificate and key
	caFile   string
	listener *Listener
	address  string
}

func write(t *testing.T, file string, parts ...[]byte) {
	t.Helper()
	if err := os.WriteFile(file, slices.Concat(parts...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newSite starts a listener whose limit for TLS and headers is long enough for the test. change
// modifies the listener before it starts.
func newSite(t *testing.T, o Options, change ...func(*Listener)) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, file: filepath.Join(dir, "public.pem"), caFile: filepath.Join(dir, "ca.crt")}
	var err error
	if s.ca, err = pki.NewAuthority("server", time.Now()); err != nil {
		t.Fatal(err)
	}
	write(t, s.caFile, s.ca.Cert)
	s.renew("first")
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = tcp.Addr().String()
	if s.listener, err = New(o, Serving{Address: s.address, CertFile: s.file, KeyFile: s.file, CAFile: s.caFile}, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	s.listener.headers, s.listener.certificate.every = testenv.Patience, 50*time.Millisecond
	for _, c := range change {
		c(s.listener)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.listener.Serve(ctx, tcp) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// renew replaces the certificate.
func (s *site) renew(name string) {
	s.t.Helper()
	leaf, err := s.ca.Issue(pki.Leaf{Name: name, CommonName: name, Server: true, IPs: []string{"127.0.0.1"}}, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	write(s.t, s.file, leaf.Cert, leaf.Key)
}

func (s *site) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.ca.Cert)
	return pool
}

func (s *site) get(path string) (*http.Response, string) {
	s.t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "https://"+s.address+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(body)
}

// TestRoutes: registered routes are served, over HTTP/2 for clients that offer it. Other paths are
// refused with a message.
func TestRoutes(t *testing.T) {
	s := newSite(t, Options{})
	if r, body := s.get("/healthz"); r.StatusCode != http.StatusOK || body != "ok\n" || r.ProtoMajor != 2 {
		t.Errorf("%s %s %q", r.Proto, r.Status, body)
	}
	if r, body := s.get("/nothing"); r.StatusCode != http.StatusNotFound || !strings.Contains(body, `"/nothing"`) {
		t.Errorf("%s %q", r.Status, body)
	}
	s.listener.Handle("/here", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	if r, body := s.get("/here"); r.StatusCode != http.StatusOK || body != "here" {
		t.Errorf("%s %q", r.Status, body)
	}
	_, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots(), MaxVersion: tls.VersionTLS11})
	if err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}

// presents returns the name in the certificate that the listener shows.
func (s *site) presents() string {
	s.t.Helper()
	c, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots()})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// untilPresents waits until the listener shows the certificate with the name.
func (s *site) untilPresents(name string) {
	s.t.Helper()
	testenv.Eventually(s.t, "the listener shows certificate "+name, testenv.Patience, func() error {
		if got := s.presents(); got != name {
			return fmt.Errorf("it shows %s", got)
		}
		return nil
	})
}

// TestCertificateIsReloaded: the listener uses a replaced certificate. A partly replaced one
// changes nothing.
func TestCertificateIsReloaded(t *testing.T) {
	s := newSite(t, Options{})
	s.untilPresents("first")
	s.renew("second")
	s.untilPresents("second")
	text, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.file, text[:len(text)/2])
	if err := s.listener.certificate.files.RunOnce(t.Context()); err == nil || s.presents() != "second" {
		t.Errorf("half a file: %v, %s", err, s.presents())
	}
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	if err := s.listener.certificate.files.RunOnce(t.Context()); err == nil || s.presents() != "second" {
		t.Errorf("no file: %v, %s", err, s.presents())
	}
	s.renew("third")
	s.untilPresents("third")
}

// TestCertificateBehindLinks: the listener also reloads a certificate if a link on its path
// changes and the file does not, as in the volumes of pods.
func TestCertificateBehindLinks(t *testing.T) {
	s := newSite(t, Options{})
	dir := t.TempDir()
	now := filepath.Join(dir, "now")
	for _, name := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		s.file = filepath.Join(dir, name, "tls.pem")
		s.renew(name)
	}
	link := func(to string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, now+".new"), os.Rename(now+".new", now)); err != nil {
			t.Fatal(err)
		}
	}
	link("one")
	behind := filepath.Join(now, "tls.pem")
	c, err := newCertificate(behind, behind, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	c.every = 20 * time.Millisecond
	go c.run(t.Context())
	link("two")
	testenv.Eventually(t, "the other certificate is used", testenv.Patience, func() error {
		pair, err := c.get(nil)
		if err == nil && pair.Leaf.Subject.CommonName != "two" {
			err = errors.New(pair.Leaf.Subject.CommonName)
		}
		return err
	})
}

// TestSlowClients: the listener closes connections of clients that send nothing, or send too
// slowly.
func TestSlowClients(t *testing.T) {
	s := newSite(t, Options{}, func(l *Listener) { l.headers = 500 * time.Millisecond })
	silent, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var slow *tls.Conn
	testenv.Eventually(t, "the test is not too slow itself", testenv.Patience, func() error {
		if slow, err = tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots()}); err != nil {
			return err
		}
		if _, err = io.WriteString(slow, "GET /healthz HTTP/1.1\r\nHost:"); err != nil {
			_ = slow.Close()
		}
		return err
	})
	defer slow.Close()
	for name, c := range map[string]net.Conn{"Silent": silent, "Slow": slow} {
		if answer, err := io.ReadAll(c); bytes.Contains(answer, []byte("200")) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.address+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Long", strings.Repeat("x", 2*headerBytes))
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, DisableKeepAlives: true}}
	if response, err := c.Do(r); err == nil {
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a long header: %s", response.Status)
		}
	}
}

// few makes a listener have n slots.
func few(n int) func(*Listener) {
	return func(l *Listener) {
		l.slots = slots.New(slots.Options{Limit: n, Closed: rejected.Inc, Log: logr.Discard()})
	}
}

// silent opens a connection from an address of this machine, and sends nothing on it.
func (s *site) silent(from string) net.Conn {
	s.t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(s.t.Context(), "tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// closedByListener waits until the listener closes a connection.
func closedByListener(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(testenv.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s is not closed: %v", c.LocalAddr(), err)
	}
}

// client returns a client that connects from an address of this machine. With keep it reuses
// connections.
func (s *site) client(from string, keep bool) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, DialContext: dialer.DialContext, DisableKeepAlives: !keep}}
	s.t.Cleanup(c.CloseIdleConnections)
	return c
}

// asks sends one request. It returns an error unless the status is 200.
func (s *site) asks(c *http.Client, path string) error {
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "https://"+s.address+path, nil)
	if err != nil {
		return err
	}
	response, err := c.Do(r)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	if response.Body.Close(); response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// TestOneAddressLocksNobodyOut: an address that opens connections without end and sends nothing
// gets all free slots, but no other address loses a connection. Clients at that address that
// send requests are served as well, and its claimed connection stays.
func TestOneAddressLocksNobodyOut(t *testing.T) {
	const limit, hostile, attacker = 16, 200, "127.0.0.2"
	s := newSite(t, Options{}, few(limit))
	var served atomic.Int32 // requests of the claimed connection
	s.listener.Handle("/mine", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { Claim(r.Context(), "alice"); served.Add(1) }))
	neighbour := s.client(attacker, true)
	if err := s.asks(neighbour, "/mine"); err != nil {
		t.Fatal(err)
	}
	first := s.silent("127.0.0.3") // silent longer than all of the attacker's
	before := counter(t, rejected)
	open := make([]net.Conn, 0, hostile)
	for i := range hostile {
		open = append(open, s.silent(attacker))
		if i%20 != 0 {
			continue
		}
		for _, from := range []string{"127.0.0.1", "127.0.0.4", attacker} {
			if err := s.asks(s.client(from, false), "/healthz"); err != nil {
				t.Errorf("from %s, beside %d connections of another address: %v", from, i, err)
			}
		}
	}
	for _, c := range open[:hostile-limit] {
		closedByListener(t, c)
	}
	if closed := counter(t, rejected) - before; closed < hostile-limit {
		t.Errorf("%v connections are counted as closed, want at least %d", closed, hostile-limit)
	}
	if n := s.listener.slots.Len(); n > limit {
		t.Errorf("%d connections have a slot", n)
	}
	secure := tls.Client(first, &tls.Config{RootCAs: s.roots(), ServerName: "127.0.0.1"})
	if err := secure.HandshakeContext(t.Context()); err != nil {
		t.Errorf("the only connection of its address: %v", err)
	}
	if err := s.asks(neighbour, "/mine"); err != nil || served.Load() != 2 {
		t.Errorf("the claimed connection: %v", err)
	}
	s.listener.claims.mu.Lock()
	defer s.listener.claims.mu.Unlock()
	if s.listener.claims.all != 1 {
		t.Errorf("the client with a claimed connection has %d of them, want that one", s.listener.claims.all)
	}
}

// counter returns the value of a counter.
func counter(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// TestConnectionsAreBounded: unclaimed connections are limited. Beyond the limit, the
// connection that was silent the longest is closed. A closed or hijacked connection frees its
// slot.
func TestConnectionsAreBounded(t *testing.T) {
	s := newSite(t, Options{}, few(2))
	hijacked := make(chan net.Conn, 1)
	s.listener.Handle("/hijack", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
		}
		hijacked <- c
	}))
	taken := func(want int) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("%d slots are taken", want), testenv.Patience, func() error {
			if got := s.listener.slots.Len(); got != want {
				return fmt.Errorf("%d are", got)
			}
			return nil
		})
	}
	one, two := s.silent("127.0.0.1"), s.silent("127.0.0.1")
	taken(2)
	three := s.silent("127.0.0.1")
	closedByListener(t, one)
	taken(2)
	for _, c := range []net.Conn{two, three} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	taken(0)
	c := tls.Client(s.silent("127.0.0.1"), &tls.Config{RootCAs: s.roots(), ServerName: "127.0.0.1"})
	if _, err := fmt.Fprintf(c, "GET /hijack HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	kept := <-hijacked
	defer kept.Close()
	taken(0)
	for range 5 { // they do not affect the hijacked one
		s.silent("127.0.0.1")
	}
	taken(2)
	if _, err := io.WriteString(kept, "hello"); err != nil {
		t.Error(err)
	}
	text := make([]byte, len("hello"))
	if _, err := io.ReadFull(c, text); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestClaimedConnections: claimed connections do not use up the unclaimed slots, however long they
// are idle. One owner can claim a limited number. If there are few free slots, idle unclaimed
// connections are closed.
func TestClaimedConnections(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) { claimedConnections(t, http2) })
	}
}

func claimedConnections(t *testing.T, http2 bool) {
	s := newSite(t, Options{})
	s.listener.Handle("/mine", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { Claim(r.Context(), r.Header.Get("Owner")) }))
	s.listener.Handle("/public", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	client := func() *http.Client {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, ForceAttemptHTTP2: http2}}
		t.Cleanup(c.CloseIdleConnections)
		return c
	}
	ask := func(c *http.Client, path, owner string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Owner", owner)
		response, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	places := func(want int) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("%d places are taken", want), testenv.Patience, func() error {
			if got := s.listener.slots.Len(); got != want {
				return fmt.Errorf("%d are", got)
			}
			return nil
		})
	}
	mine, anonymous := client(), client()
	ask(mine, "/mine", "alice")
	ask(mine, "/mine", "alice") // the same connection
	places(0)
	ask(anonymous, "/public", "")
	places(1)
	s.listener.claims.mu.Lock()
	s.listener.claims.by["bob"] = maxClaimedBy
	s.listener.claims.mu.Unlock()
	bobs := client()
	ask(bobs, "/mine", "bob")
	places(2)
	bobs.CloseIdleConnections()
	anonymous.CloseIdleConnections()
	places(0)
	for s.listener.slots.Len() <= maxConnections/2 { // simulates many connections
		s.listener.slots.Take("192.0.2.1:1", func() {})
	}
	before := s.listener.slots.Len()
	ask(anonymous, "/public", "")
	places(before) // the connection is closed
	ask(client(), "/mine", "carol")
	places(before) // the connection belongs to carol, and stays
	for range 2 {
		ask(mine, "/public", "alice")
	}
	s.listener.claims.mu.Lock()
	if n := s.listener.claims.all; n != 2 {
		t.Errorf("under load those who have connections keep %d of 2", n)
	}
	s.listener.claims.mu.Unlock()
	mine.CloseIdleConnections()
	testenv.Eventually(t, "a connection that is closed is nobody's any more", testenv.Patience, func() error {
		s.listener.claims.mu.Lock()
		defer s.listener.claims.mu.Unlock()
		if n := s.listener.claims.by["alice"]; n > 0 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// TestAuthorities: Authorities returns the authority of the certificate, which agents trust.
func TestAuthorities(t *testing.T) {
	s := newSite(t, Options{})
	got, err := s.listener.Authorities()
	if err != nil || !bytes.Equal(got, s.ca.Cert) {
		t.Errorf("%q, %v", got, err)
	}
	o := Options{CertFile: s.file, KeyFile: s.file, URL: "https://orrery.example.com/"}
	l, err := New(o, Serving{Address: s.address, CAFile: "/is/not/there"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Authorities(); err != nil || got != nil {
		t.Errorf("with a certificate of somebody else's: %q, %v", got, err)
	}
	if l.URL() != "https://orrery.example.com" {
		t.Error(l.URL())
	}
	o.CAFile = filepath.Join(t.TempDir(), "ca.pem")
	write(t, o.CAFile, s.ca.Key, s.ca.Cert)
	if l, err = New(o, Serving{Address: s.address}, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Authorities(); err != nil || !bytes.Equal(got, s.ca.Cert) {
		t.Errorf("%q, %v", got, err)
	}
	write(t, o.CAFile, s.ca.Key)
	if _, err = New(o, Serving{Address: s.address}, logr.Discard()); err == nil || !strings.Contains(err.Error(), "--public-ca-file") {
		t.Errorf("a file without a certificate: %v", err)
	}
	if _, err = New(Options{CertFile: s.caFile, KeyFile: s.caFile}, Serving{Address: s.address}, logr.Discard()); err == nil || !strings.Contains(err.Error(), "--public-tls-cert-file") {
		t.Errorf("a certificate without a key: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		o         Options
		at        string
		url, flag string
	}{
		"Default":     {Options{}, "127.0.0.1:7000", "https://127.0.0.1:7000", ""},
		"Everywhere":  {Options{}, "0.0.0.0:7000", "", ""},
		"IPv6":        {Options{}, "[2001:db8::1]:7000", "https://[2001:db8::1]:7000", ""},
		"Balancer":    {Options{URL: "https://orrery.example.com", Address: ":7000"}, "0.0.0.0:7000", "https://orrery.example.com", ""},
		"PlainURL":    {Options{URL: "http://orrery.example.com"}, "127.0.0.1:1", "", "--public-url"},
		"URLWithPath": {Options{URL: "https://orrery.example.com/x"}, "127.0.0.1:1", "", "--public-url"},
		"NoPort":      {Options{Address: "127.0.0.1"}, "127.0.0.1:1", "", "--public-address"},
		"AName":       {Options{Address: "example.com:1"}, "127.0.0.1:1", "", "--public-address"},
		"PortTooHigh": {Options{Address: "127.0.0.1:65536"}, "127.0.0.1:1", "", "--public-address"},
		"NoKey":       {Options{CertFile: "x"}, "127.0.0.1:1", "", "--public-tls-key-file"},
	} {
		t.Run(name, func(t *testing.T) {
			url, err := tc.o.url(tc.at)
			if tc.flag != "" {
				if err == nil || !strings.Contains(err.Error(), tc.flag) {
					t.Errorf("want an error that names %s, got: %v", tc.flag, err)
				}
				return
			}
			if diff := cmp.Diff(tc.url, url); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	if err := (&Options{Address: "x", URL: "y"}).Validate(); err == nil || !strings.Contains(err.Error(), "--public-url") || !strings.Contains(err.Error(), "--public-address") {
		t.Errorf("not every mistake is named: %v", err)
	}
}
