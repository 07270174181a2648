package enrollment

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"testing"

	"orrery.dev/orrery/internal/tunnel"
)

// TestBalancerLearnsNothing: agents join, report and serve through a load balancer that ends TLS.
// Nothing that it sees in plain text is secret.
func TestBalancerLearnsNothing(t *testing.T) {
	s := newSite(t)
	oak := s.cluster("oak")
	a := s.agent("oak")
	seen := &record{}
	to := &url.URL{Scheme: "https", Host: s.server.address}
	balancer := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: s.server.roots}}).DialContext(ctx, network, address)
			return &recorded{Conn: c, to: seen}, err
		}},
	})
	balancer.StartTLS()
	t.Cleanup(balancer.Close)
	through := *a
	through.address = balancer.Listener.Addr().String()
	through.roots = x509.NewCertPool()
	through.roots.AddCert(balancer.Certificate())
	a = &through

	token := s.token("oak")
	a.credentials.Token = "a-secret-of-the-service-account"
	a.redeem(token)
	s.joined(oak)
	a.credentials.Token += "-2"
	if receipt := a.report(tunnel.Report{Request: a.request(), Sealed: a.seal("oak", a.credentials)}); receipt.Refused != "" {
		t.Fatal(receipt.Refused)
	}
	a.run()
	c := s.dial("oak")
	if err := echoes(c, "hello"); err != nil { // what member says is encrypted end to end
		t.Fatal(err)
	}
	text := seen.bytes()
	if !bytes.Contains(text, []byte(tunnel.RedeemPath)) || !bytes.Contains(text, []byte(`"sealed"`)) {
		t.Fatal("the balancer saw nothing: this test tells nothing")
	}
	der, err := json.Marshal(a.credentials.CA)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{token, "a-secret-of-the-service-account", a.credentials.Endpoint, string(der)} {
		for _, form := range forms(secret) {
			if bytes.Contains(text, form) {
				t.Errorf("the balancer saw %q", form)
			}
		}
	}
}

// forms returns the encodings in which a secret could appear in a text.
func forms(secret string) [][]byte {
	all := [][]byte{[]byte(secret)}
	for cut := range 3 { // base64 at any position in a longer text
		part := secret[cut:]
		part = part[:len(part)/3*3]
		all = append(all, []byte(base64.StdEncoding.EncodeToString([]byte(part))), []byte(base64.URLEncoding.EncodeToString([]byte(part))))
	}
	return slices.DeleteFunc(all, func(b []byte) bool { return len(b) < 4 })
}

// record is the plain text that passes.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.text.Bytes())
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// recorded is a connection whose plain text is recorded.
type recorded struct {
	net.Conn

	to io.Writer
}

func (c *recorded) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	_, _ = c.to.Write(p[:n])
	return n, err
}

func (c *recorded) Write(p []byte) (int, error) {
	_, _ = c.to.Write(p)
	return c.Conn.Write(p)
}
