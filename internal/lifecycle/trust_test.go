package lifecycle

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"orrery.dev/orrery/internal/pki"
)

// A server with an expired certificate is accepted. One of another authority or for another address
// is not.
func TestTrusting(t *testing.T) {
	now := time.Now()
	mint := func(name string) pki.KeyPair {
		ca, err := pki.NewAuthority(name, now.Add(-2*pki.LeafLifetime))
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ours, other := mint("ca"), mint("ca")
	for name, c := range map[string]struct {
		authority pki.KeyPair
		issued    time.Time
		ip        string
		want      bool
	}{
		"Valid":            {ours, now, loopback, true},
		"Ended":            {ours, now.Add(-pki.LeafLifetime - time.Hour), loopback, true},
		"OtherAuthority":   {other, now.Add(-pki.LeafLifetime - time.Hour), loopback, false},
		"OtherAddress":     {ours, now, "10.0.0.1", false},
		"NotYet":           {ours, now.Add(time.Hour), loopback, false},
		"EndedAndNotForUs": {ours, now.Add(-pki.LeafLifetime - time.Hour), "10.0.0.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := c.authority.Issue(pki.Leaf{Name: "server", Authority: "ca", IPs: []string{c.ip}, Server: true}, c.issued)
			if err != nil {
				t.Fatal(err)
			}
			client, err := ours.Issue(pki.Leaf{Name: "client", Authority: "ca", CommonName: "us", Client: true}, now)
			if err != nil {
				t.Fatal(err)
			}
			served, err := tls.X509KeyPair(pair.Cert, pair.Key)
			if err != nil {
				t.Fatal(err)
			}
			clients := x509.NewCertPool()
			clients.AppendCertsFromPEM(ours.Cert)
			var user string
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				user = r.TLS.PeerCertificates[0].Subject.CommonName
			}))
			s.TLS = &tls.Config{Certificates: []tls.Certificate{served}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
			s.StartTLS()
			defer s.Close()
			h := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting(ours, client)}}
			answer, err := h.Get(s.URL)
			if err == nil {
				answer.Body.Close()
			}
			if (err == nil) != c.want || c.want && user != "us" {
				t.Errorf("answered as %q: %v, want %v", user, err, c.want)
			}
		})
	}
}
