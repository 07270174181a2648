package lifecycle

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"orrery.dev/orrery/internal/pki"
)

// loopback is the address at which the API server and etcd of a host are reached through the SSH
// connection to that host.
const loopback = "127.0.0.1"

// trusting returns the TLS configuration for connections to the API server or etcd of a host
// through the SSH connection, at its loopback address. client is the client certificate. If it is
// unusable, the handshake fails. The server's certificate must be signed by authority and be for
// the loopback address, but may have expired. SSH has already authenticated the host, and a renewal
// must reach servers whose certificates have expired.
func trusting(authority, client pki.KeyPair) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Cert)
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(client.Cert, client.Key)
			if err != nil {
				return nil, fmt.Errorf("client key: %w", err)
			}
			return &pair, nil
		},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection checks all but the expiry
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("the server has no certificate")
			}
			leaf, between, now := s.PeerCertificates[0], x509.NewCertPool(), time.Now()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			if now.After(leaf.NotAfter) {
				now = leaf.NotAfter
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: loopback, CurrentTime: now})
			return err
		},
	}
}
